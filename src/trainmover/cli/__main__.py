"""``python -m trainmover.cli`` is ``trainmover``."""

from trainmover.cli import main

if __name__ == "__main__":
    main()

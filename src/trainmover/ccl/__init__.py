"""The collective library: a torch.distributed backend whose links can be changed.

From the outside in: :mod:`backend` registers it, :mod:`group` is what torch sees,
:mod:`communicator` decides where a call goes, :mod:`walks` and :mod:`tree_walks` are the
collectives, :mod:`walk` is one of them at work, :mod:`engine` is the one thread that moves bytes,
:mod:`table` swaps links, :mod:`connection`, :mod:`handshake` and :mod:`frames` are the wire.
"""

"""What docs/explanation/security.md promises and no other test shows: secrets, ports, no pickle."""

from __future__ import annotations

import ast
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from trainmover.access.credentials import write_credentials
from trainmover.ccl.table import LinkTable
from trainmover.cli.access import find
from trainmover.events.catalogue import EVENTS

SOURCE = Path(__file__).resolve().parents[2] / "src" / "trainmover"

# -- no pickle from the network -----------------------------------------------------------------------

UNPICKLING = {"loads", "load", "Unpickler", "_loads"}
UNSAFE = {"eval", "exec", "compile", "marshal", "shelve", "dill", "cloudpickle", "joblib"}


def calls(tree: ast.AST) -> list[tuple[str, ast.Call]]:
    """Dotted names of everything that is called."""
    return [(ast.unparse(node.func), node) for node in ast.walk(tree) if isinstance(node, ast.Call)]


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_nothing_is_unpickled(path: Path) -> None:
    """No module unpickles or evaluates; torch.load only with weights_only; no torch object collectives."""
    tree = ast.parse(path.read_text())
    for name, call in calls(tree):
        where = f"{path.relative_to(SOURCE)}:{call.lineno}: {name}"
        module, _, function = name.rpartition(".")
        assert not (module.endswith("pickle") and function in UNPICKLING), where
        assert name.split(".")[0] not in UNSAFE, where
        assert not re.search(r"object_list|(gather|scatter|send|recv)_object", name), where
        if name == "torch.load":
            only = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
            assert only.get("weights_only") == "True", where
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert node.module != "pickle", (
                f"{path.relative_to(SOURCE)}:{node.lineno}: import pickle as a whole"
            )
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        assert not UNSAFE & {name.split(".")[0] for name in names}, path


# -- ports -----------------------------------------------------------------------------------------------


def listening() -> set[tuple[str, int]]:
    """Addresses and ports on which this process listens over TCP (v4 and v6), as the kernel has them."""
    own = {
        os.readlink(f"/proc/self/fd/{fd}")
        for fd in os.listdir("/proc/self/fd")
        if os.path.exists(f"/proc/self/fd/{fd}")
    }
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in own:
                address, port = fields[1].split(":")
                raw = bytes.fromhex(address)
                text = socket.inet_ntoa(raw[::-1]) if len(raw) == 4 else address
                found.add((text, int(port, 16)))
    return found


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.77"])
def test_a_rank_listens_on_the_chosen_address_only(host: str) -> None:
    """One port, on the address that the machine was given, and on no other."""
    before = listening()
    table = LinkTable("job", "life", b"secret", host)
    try:
        assert listening() - before == {(host, table.port)}
    finally:
        table.close()


# -- secrets ------------------------------------------------------------------------------------------------


def test_no_event_has_a_place_for_a_secret() -> None:
    """No field of any event is named like one."""
    for model in EVENTS.values():
        for field in model.model_fields:
            assert not re.search(r"secret|password|passwd|token|credential|private_key", field), model.type


def test_no_command_takes_a_secret_as_an_argument() -> None:
    """Everybody on a computer can read arguments: secrets come in files or in the environment."""
    for path in (SOURCE / "cli").glob("*.py"):
        for name, call in calls(ast.parse(path.read_text())):
            if name in ("typer.Option", "typer.Argument"):
                flags = [argument.value for argument in call.args if isinstance(argument, ast.Constant)]
                assert not re.search(r"--\S*(secret|password|token)", " ".join(map(str, flags))), path.name


def test_errors_about_the_bus_do_not_tell_the_password(tmp_path: Path) -> None:
    """A machine whose bus is not there says the address, not the password; nor is it in its arguments."""
    write_credentials(tmp_path, hosts=["127.0.0.1"], job="job", port=9, tls=False)
    folder = tmp_path / "machine"
    access = find(str(folder), None, secret=True)
    password = re.search(r":([^:@]+)@", access.bus)[1]
    command = [sys.executable, "-m", "trainmover.cli", "--log-level", "debug", "status", "--bus", str(folder)]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert told.returncode == 1
    assert "127.0.0.1:9" in told.stderr
    assert password not in told.stderr + told.stdout
    assert access.secret not in told.stderr + told.stdout
    assert "://" not in " ".join(command)

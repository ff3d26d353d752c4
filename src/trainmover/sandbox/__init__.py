"""The sandbox: a joiner runs the user's own script on recorded collective results.

:mod:`recorder` watches the first committed steps of a live rank, :mod:`signature` says what the rank is
by what it called, :mod:`recording` is the format on disk, :mod:`player` answers a joiner's calls from
it, as far as they cross its machine's border.
"""

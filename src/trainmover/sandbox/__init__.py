"""The sandbox: a joiner runs the user's own script on recorded collective results.

:mod:`recording` is the format on disk, :mod:`recorder` writes it during the first committed
steps, :mod:`player` answers a joiner's calls from it.
"""

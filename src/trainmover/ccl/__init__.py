"""The collective library: a torch.distributed backend whose links can be changed.

From the outside in: :mod:`backend` registers it, :mod:`group` or :mod:`plugin` is what torch sees,
:mod:`collectives` turns torch's calls into ours (:mod:`arguments` checks them, :mod:`memory` finds their
host memory, :mod:`work` is waited on), outside a job :mod:`standalone` brings the process into touch with
its peers and :mod:`membership` changes them, :mod:`communicator` decides where a call goes, :mod:`walks`
and :mod:`tree_walks` are the collectives, :mod:`walk` is one of them at work, :mod:`engine` is the one
thread that moves bytes, :mod:`delivery` hands results over,
:mod:`table` swaps links, :mod:`connection`, :mod:`handshake` and :mod:`frames` are the wire.
"""

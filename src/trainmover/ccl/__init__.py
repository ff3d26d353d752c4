"""The collective library: a torch.distributed backend whose links can be changed.

From the outside in:

- *Torch*: :mod:`backend` registers it; :mod:`group` or :mod:`plugin` is what torch sees, with the
  calls of :mod:`collectives` (:mod:`arguments` checks them, :mod:`memory` finds their host memory,
  :mod:`work` is waited on).  Outside a job :mod:`standalone` brings the process into touch with its peers
  and :mod:`membership` changes them.
- *Calls*: :mod:`communicator` decides where a call goes, :mod:`algorithms` how it is carried out; the
  collectives themselves are the modules named ``*walks``, over a :mod:`view` of their group.
- *The engine*: :mod:`engine` keeps the epoch, :mod:`schedule` says which walk runs when, :mod:`poller` waits
  for sockets, :mod:`wheel` says which thread does all that, :mod:`delivery` hands results over.
- *Links*: :mod:`table` prepares and swaps them, :mod:`connectors` make them, :mod:`pairs` makes those that
  are needed on demand, :mod:`connection`, :mod:`handshake`, :mod:`frames` and :mod:`tags` are the wire,
  :mod:`shared` is the memory that ranks of one machine see of each other.
"""

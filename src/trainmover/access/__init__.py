"""Who may say and hear what: roles, the bus's accounts, certificates, and the folders that carry them.

Nothing here talks to a bus: :mod:`roles` is a table made from the services' own, :mod:`permissions`
turns it into NATS subjects, :mod:`certificates` and :mod:`credentials` write what a deployment
mounts, and :mod:`address` reads it again.  No torch here.
"""

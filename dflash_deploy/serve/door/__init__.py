"""The door: the gateway as a process of its own, for engines that cannot load it as a middleware.

The engine listens only on a Unix socket in a directory of this user; the door listens on the endpoint's address.
"""

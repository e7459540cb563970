"""The router in front of several engines: SMG, in a process of its own, and the list of engines that it sends to."""

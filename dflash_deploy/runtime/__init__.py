"""Start, stop and inspect the engine, in a container or as a process, behind one protocol."""

"""How many replicas a load needs: the load, the service of one engine, a queueing simulation, and the decision."""

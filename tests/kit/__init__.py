"""Runs the real parts that tests talk to: Redis, Consul, processes of the mesh."""

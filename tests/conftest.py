"""Fixtures of all tests: the real Redis and the real Consul, each started on a free port once per session."""

pytest_plugins = ["kit.redis", "kit.consul", "kit.replicas", "kit.stores", "kit.driver"]

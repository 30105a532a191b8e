# Consul as the registry of a mesh: one server. Its data is only where nodes are, and each node writes that again
# within seconds when it is gone.
server           = true
bootstrap_expect = 1
client_addr      = "0.0.0.0"
data_dir         = "/consul/data"
log_level        = "warn"

# Every process keeps a few blocking queries open; behind one address there can be many processes.
limits {
  http_max_conns_per_client = 2000
}

disable_update_check = true

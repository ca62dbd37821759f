"""The engine on etcd 3.4 and later, by gRPC."""

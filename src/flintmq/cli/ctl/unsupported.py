"""Verbs of RabbitMQ's commands that mean nothing here: each has an answer that says why, and where to go instead.

in: a verb of rabbitmqctl, rabbitmq-diagnostics, rabbitmq-queues, rabbitmq-streams, rabbitmq-upgrade or rabbitmq-plugins (3.13 and 4.x).
out: a sentence. tests/cli/test_ctl_verbs.py holds that each of their verbs is a command or stands here.
"""

from __future__ import annotations

_ERLANG = "FlintMQ has no Erlang: it is a Python process"
_ONE = "queues are on one node, and shared queues in the engine of their cluster"
_LOGS = "lines of the log go to stderr, where the service manager keeps them: journalctl -u flintmq"
_CLUSTER = "nodes join by their option --cluster; flintmq cluster status, drain and remove are for those that are there"
_PLUGINS = "FlintMQ has no plugins: all of it is there, and options of flintmq serve turn parts on"
_QUORUM = "FlintMQ has no quorum queues with replicas: shared queues survive a node (flintmq shared)"
_RATES = "figures of logins are at /metrics (auth_attempts), and refused ones in the log and --audit-log"
_MQTT = "FlintMQ has no MQTT and no STOMP"
_STREAM = "FlintMQ has no stream protocol: streams are read by AMQP and HTTP; groups are at /api/v1/vhosts/VHOST/groups"
_FLAGS = "FlintMQ has no feature flags: an upgrade changes nothing that a flag would hold back"
_DISK = "the limit is an option, --disk-free-limit, and holds from the next start"
_SECRETS = "FlintMQ keeps no encrypted values in its configuration: options take files with secrets"
_TLS = "TLS is OpenSSL's, 1.2 and 1.3: openssl s_client -connect HOST:5671 shows the outcome"

# verbs, separated by blanks -> the answer
_ANSWERS = {
    "activate_free_disk_space_monitoring deactivate_free_disk_space_monitoring set_disk_free_limit": _DISK,
    "set_vm_memory_high_watermark": "the limit is an option, --memory-limit, and holds from the next start",
    "autocomplete": "flintmq completion SHELL prints the script that completes verbs and options",
    "decode encode decrypt_conf_value encrypt_conf_value": _SECRETS,
    "disable_vhost_deletion_protection enable_vhost_deletion_protection": "FlintMQ has no protection of virtual hosts: administrators alone"
    " delete them",
    "enable_feature_flag list_feature_flags list_deprecated_features check_if_any_deprecated_features_are_used": _FLAGS,
    "eval eval_file exec remote_shell observer hipe_compile force_gc erlang_cookie_hash erlang_cookie_sources erlang_version"
    " runtime_thread_stats schema_info code_path": _ERLANG,
    "force_boot force_reset reset force_standalone_khepri_boot": "there is nothing to reset in a running broker: stop it, and start it with"
    " another --data-dir (flintmq backup first)",
    "join_cluster update_cluster_nodes rename_cluster_node change_cluster_node_type discover_peers": _CLUSTER,
    "forget_cluster_node": "flintmq cluster remove NODE",
    "list_channel_interceptors set_channel_interceptor_priorities": "FlintMQ has no interceptors of channels",
    "list_ciphers cipher_suites tls_versions": _TLS,
    "list_hashes": "passwords of definitions files may be hashed by rabbit_password_hashing_sha256, _sha512 and _md5; new ones by argon2id",
    "list_unresponsive_queues maybe_stuck": "FlintMQ has no processes of queues that could hang: flintmq doctor looks for trouble",
    "reconcile_vhosts restart_vhost": "FlintMQ has no virtual hosts that stop by themselves: check_virtual_hosts says whether they run",
    "remove_classic_queue_mirroring_from_policies check_if_cluster_has_classic_queue_mirroring_policy sync_queue cancel_sync_queue"
    " list_policies_with_classic_queue_mirroring list_operator_policies_with_classic_queue_mirroring": f"FlintMQ has no mirrors: {_ONE}",
    "rotate_logs log_location log_tail log_tail_stream": _LOGS,
    "start_app stop_app wait": "FlintMQ has no application apart from its process: flintmq serve, flintmq ctl stop, await_startup",
    "suspend_listeners resume_listeners drain revive": "flintmq cluster drain NODE takes no more clients, and undrain takes them again",
    "check_for_quorum_queues_without_an_elected_leader add_member delete_member grow grow_to_count shrink force_checkpoint quorum_status"
    " reclaim_quorum_memory transfer_leadership check_if_new_quorum_queue_replicas_have_finished_initial_sync": _QUORUM,
    "await_online_quorum_plus_one has_reached_target_cluster_size post_upgrade": f"no node waits for a majority of others: {_ONE}",
    "rebalance": "flintmq cluster move gives a shared queue to another node",
    "peek": "GET /api/v1/queues/VHOST/QUEUE/peek shows messages without taking them, and the console's page of a queue does",
    "certificates": "check_certificate_expiration says whether one ends soon",
    "command_line_arguments": "flintmq ctl environment shows the options that the broker runs with",
    "consume_event_stream": "GET /api/v1/events streams them, and exchange amq.rabbitmq.event has them as messages",
    "disable_auth_attempt_source_tracking enable_auth_attempt_source_tracking list_node_auth_attempt_stats reset_node_auth_attempt_metrics"
    " clear_auth_backend_cache": _RATES,
    "list_network_interfaces resolve_hostname resolver_info os_env": "the system's own commands tell: ip address, getent hosts",
    "list_policies_that_match": "list_queues name policy operator_policy effective_policy_definition shows what works on each queue",
    "message_size_stats": "flintmq top and the console's page of a queue show sizes of messages",
    "metadata_store_status": "definitions are in SQLite or PostgreSQL: flintmq db, flintmq doctor --data-dir DIR",
    "add_replica coordinator_status delete_replica restart_stream stream_status add_super_stream delete_super_stream"
    " activate_stream_consumer"
    " list_stream_connections list_stream_consumer_groups list_stream_consumers list_stream_group_consumers list_stream_publishers"
    " list_stream_tracking reset_offset": _STREAM,
    "directories disable enable is_enabled list set": _PLUGINS,
    "add_signing_key add_uaa_key": "keys of tokens come from --oauth-jwks, a file or an https URL",
    "consistent_hash_exchange_ring_state": "FlintMQ has no ring: each binding's weight decides its share",
    "reset_stats_db": "FlintMQ has no database of statistics: counters are the broker's own",
    "list_mqtt_connections list_web_mqtt_connections list_stomp_connections list_web_stomp_connections decommission_mqtt_node": _MQTT,
    "list_amqp10_connections": "FlintMQ has no AMQP 1.0",
    "list_trust_store_certificates refresh_trust_store": "clients' certificates are checked with --tls-ca",
}
ANSWERS = {verb: answer for verbs, answer in _ANSWERS.items() for verb in verbs.split()}

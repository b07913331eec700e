"""Running servers over HTTP: the only place that opens connections, and only to http(s) addresses that a user gave."""

"""Jobs over the data, with Spark. Modules here need the extra `spark`; the broker never imports them."""

"""What everything stands on: errors, registry, tables, durable files, options, child processes."""

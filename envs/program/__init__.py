"""Programs as environments: a local gateway stands in for the model server that they ask."""

"""One trainer in several processes (ranks): launching, watching, agreeing, sharding."""

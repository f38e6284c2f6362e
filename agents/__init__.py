"""Acting: from text to tokens and back, engines that sample, rollouts over a pool of environments."""

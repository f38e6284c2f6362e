"""Credits of papers that sample a group as a tree (``rollout.branch``); any other credit takes one as well."""

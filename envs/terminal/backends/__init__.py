"""What runs the commands of an episode: ``bubblewrap`` by default, ``podman`` or ``docker`` for tasks with images."""

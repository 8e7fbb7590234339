"""The compute protocol: controller and replicas in four stages."""

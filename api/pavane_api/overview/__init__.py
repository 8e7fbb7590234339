"""All resources of all kinds as one stream, for pages that show everything."""

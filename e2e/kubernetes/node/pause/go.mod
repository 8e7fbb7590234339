module pavane.dev/e2e/kubernetes/node/pause

go 1.24.0

module pavane.dev/e2e/kubernetes/node/runc

go 1.24.0

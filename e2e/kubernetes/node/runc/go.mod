module pavane/e2e/kubernetes/node/runc

go 1.24.0

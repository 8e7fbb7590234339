"""What targets share whose platform is installed by the charts."""

import subprocess
from pathlib import Path

from e2e.kubernetes.tools import find
from e2e.targets.base import SYSTEM, Target

CHARTS = Path(__file__).parents[2] / "charts"
RELEASES = ("pavane-crds", "pavane")
"""Charts in the order of their installation; the releases have their names."""
HELM_S = 180
"""Longest wait of Helm itself; its process gets a little more, so that its own words are seen."""
ACCOUNT = "e2e"
AUDIENCE = "pavane-api"
TOKEN_LIFE = "24h"


class ChartTarget(Target):
    """A target with operator and control plane as Helm installs them."""

    values: tuple[str, ...] = ()
    """What this target needs of the chart `pavane`, as for `helm --set`."""

    def install(self, *values: str) -> None:
        """Install or upgrade both charts; ``values`` are further ones."""
        repository, _, tag = self.image.rpartition(":")
        settings = [f"image.repository={repository}", f"image.tag={tag}", *self.values, *values]
        common = ["--namespace", SYSTEM, "--create-namespace", "--wait", "--timeout", f"{HELM_S}s"]
        definitions, platform = RELEASES
        self.helm("upgrade", "--install", definitions, str(CHARTS / definitions), *common)
        sets = [part for setting in settings for part in ("--set", setting)]
        self.helm("upgrade", "--install", platform, str(CHARTS / platform), *common, *sets)
        # The platform itself is admitted at the strictest level.
        self.kubectl("label", "namespace", SYSTEM, "pod-security.kubernetes.io/enforce=restricted", "--overwrite")

    def uninstall(self) -> None:
        """Uninstall the platform and its definitions, as a user would."""
        for release in reversed(RELEASES):
            self.helm("uninstall", release, "--namespace", SYSTEM, "--wait", "--timeout", f"{HELM_S}s")

    def helm(self, *arguments: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
        """Run `helm` as an administrator would."""
        return self._run([str(find("helm") or "helm"), *arguments], check, None, HELM_S + 20)

    def new_token(self) -> str:
        """A token for the control plane, of an account that may do everything."""
        bare = ("--namespace", SYSTEM, ACCOUNT)
        self.kubectl("delete", "serviceaccount", "--ignore-not-found", *bare)
        self.kubectl("create", "serviceaccount", *bare)
        self.kubectl("delete", "clusterrolebinding", "--ignore-not-found", ACCOUNT)
        binding = ("--clusterrole", "cluster-admin", "--serviceaccount", f"{SYSTEM}:{ACCOUNT}")
        self.kubectl("create", "clusterrolebinding", ACCOUNT, *binding)
        token = self.kubectl("create", "token", *bare, "--audience", AUDIENCE, "--duration", TOKEN_LIFE)
        return token.stdout.strip()

"""What a pod of a WaltzCluster finds in its environment, and what it says when that is wrong."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from pavane.pods.waltz_settings import (
    Metadata,
    WaltzServerSettings,
    WaltzStorageSettings,
    ZooKeeperServers,
    load,
    metadata,
)
from pavane.raft.keys import IDENT_KEY
from pavane.runtime.settings import SettingsError

CONFIG: dict[str, Any] = {
    "cluster_name": "ledger",
    "root": "/ledger-12345678",
    "key": "01020304-0506-0708-090a-0b0c0d0e0f10",
    "partitions": 4,
    "storage": [f"ledger-storage-{ordinal}.ledger-storage.default.svc:55280" for ordinal in range(3)],
}


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with `config.yaml` and `metadata/`."""
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(CONFIG))
    keys = tmp_path / "metadata"
    keys.mkdir()
    (keys / "addresses").write_text("tcp://meta.default.svc:8047\ntcp://10.0.0.1:8047\n")
    (keys / IDENT_KEY).write_bytes(b"ident")
    variables = {
        "PAVANE_RESOURCE": "ledger",
        "PAVANE_KIND": "WaltzCluster",
        "PAVANE_ROLE": "server",
        "PAVANE_GENERATION": "2",
        "PAVANE_CONFIG": str(tmp_path / "config.yaml"),
        "PAVANE_WALTZ_HOST": "ledger-server-g2-0.ledger-server-g2.default.svc",
        "PAVANE_WALTZ_METADATA": str(keys),
        "PAVANE_WALTZ_DATA": str(tmp_path / "data"),
        "POD_NAME": "ledger-server-g2-0",
        "POD_NAMESPACE": "default",
        "POD_IP": "127.0.0.2",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return tmp_path


def test_everything_of_a_server_arrives(environment: Path) -> None:
    settings = WaltzServerSettings.load()
    config = load(settings)
    assert (config.cluster_name, config.root, config.partitions) == ("ledger", "/ledger-12345678", 4)
    assert config.key.hex == "0102030405060708090a0b0c0d0e0f10"
    assert config.replicas == 3
    assert config.storage[2] == "ledger-storage-2.ledger-storage.default.svc:55280"
    assert settings.generation == 2
    found = metadata(settings.waltz_metadata)
    assert isinstance(found, Metadata)
    assert found.addresses == ("tcp://meta.default.svc:8047", "tcp://10.0.0.1:8047")
    assert found.keys.ident == b"ident"
    assert found.keys.curve is None


def test_a_storage_node_needs_no_metadata(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PAVANE_WALTZ_METADATA")
    settings = WaltzStorageSettings.load()
    assert settings.waltz_data == environment / "data"
    assert load(settings).replicas == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"partitions": 0}, "partitions"),
        ({"storage": []}, "storage"),
        ({"storage": ["a:1", "a:1"]}, "occurs twice"),
        ({"storage": ["nowhere"]}, "not host:port"),
        ({"root": "ledger"}, "root"),
        ({"key": "x"}, "key"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_a_wrong_setting_is_named(environment: Path, change: dict[str, Any], message: str) -> None:
    (environment / "config.yaml").write_text(yaml.safe_dump({**CONFIG, **change}))
    with pytest.raises(SettingsError, match=message):
        load(WaltzServerSettings.load())


def test_zookeeper_is_named_instead_of_peers(environment: Path) -> None:
    (environment / "metadata" / "zookeeper").write_text("a:2181,b:2181\n")
    assert metadata(environment / "metadata") == ZooKeeperServers(connect="a:2181,b:2181")
    (environment / "metadata" / "zookeeper").write_text("\n")
    with pytest.raises(SettingsError, match="names no server"):
        metadata(environment / "metadata")


def test_metadata_without_addresses_or_keys_is_refused(environment: Path) -> None:
    folder = environment / "metadata"
    (folder / "addresses").write_text("\n")
    with pytest.raises(SettingsError, match="names no peer"):
        metadata(folder)
    (folder / IDENT_KEY).unlink()
    with pytest.raises(SettingsError, match="lacks secret"):
        metadata(folder)

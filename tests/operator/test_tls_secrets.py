"""The Secrets of certificates: what is written when, what a user may give, what the operator dials with."""

import base64
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from pavane.compute.certificates import dns_names
from pavane_operator.crds.raftcluster import RaftClusterSpec
from pavane_operator.plan.model import EXPIRES_SOON, ApplyChild, Child, CreateChild, Resource
from pavane_operator.tls.certificates import Pair, authorities_in, is_signed_by, new_authority, new_certificate
from pavane_operator.tls.issue import SPREAD
from pavane_operator.tls.secrets import Identity, Tls, look

NOW = datetime(2026, 6, 1, 12, 0, tzinfo=UTC)
IDENTITY = Identity({"app.kubernetes.io/instance": "queue"}, ("queue.orders.svc", "*.queue-server-g1.orders.svc"))
DAY = timedelta(days=1)


def resource(**tls: Any) -> Resource:
    return Resource(
        kind="RaftCluster",
        name="queue",
        namespace="orders",
        uid="uid",
        resource_version="1",
        metadata_generation=1,
        spec=RaftClusterSpec.model_validate({"stateMachine": "Broadcast", "tls": tls}),
        status=None,
    )


class Store:
    """The Secrets of the resource, written as the actions say."""

    def __init__(self, **tls: Any) -> None:
        self.resource = resource(**tls)
        self.children: dict[str, Child] = {}
        self.now = NOW
        self.writes: list[str] = []
        self.clients: tuple[str, ...] = ()

    def look(self) -> Tls:
        identity = replace(IDENTITY, clients=self.clients)
        return look(self.resource, self.children.values(), identity, None, self.now)

    def settle(self) -> Tls:
        """Do what is to be done until nothing is."""
        for _ in range(10):
            seen = self.look()
            if not seen.plan.actions:
                return seen
            for action in seen.plan.actions:
                self.write(action)
        raise AssertionError("it never comes to rest")

    def write(self, action: CreateChild | ApplyChild) -> None:
        name = action.manifest.name
        present = self.children.get(name)
        assert isinstance(action, CreateChild) == (present is None)
        if isinstance(action, ApplyChild) and present is not None:
            assert action.resource_version == present.resource_version
        self.writes.append(name)
        body = action.manifest.body
        self.children[name] = Child("Secret", name, f"uid-{name}", str(len(self.writes)), body)

    def data(self, name: str) -> dict[str, bytes]:
        return {key: base64.b64decode(value) for key, value in self.children[name].body["data"].items()}

    def certificate(self) -> x509.Certificate:
        return x509.load_pem_x509_certificate(self.data("queue-tls")["tls.crt"])

    def spoil(self, name: str, **data: bytes) -> None:
        child = self.children[name]
        changed = {key.replace("_", "."): base64.b64encode(value).decode() for key, value in data.items()}
        body = {**child.body, "data": {**child.body["data"], **changed}}
        self.children[name] = replace(child, body=body)


def test_authority_and_certificate_are_created_one_after_the_other() -> None:
    store = Store()
    seen = store.settle()
    assert store.writes == ["queue-ca", "queue-tls"]
    assert seen.plan.again_at == NOW + 75 * DAY
    assert set(store.data("queue-ca")) == {"tls.crt", "tls.key"}
    data = store.data("queue-tls")
    assert data["ca.crt"] == store.data("queue-ca")["tls.crt"]
    certificate = store.certificate()
    assert dns_names(certificate) == IDENTITY.names
    assert certificate.not_valid_after_utc == NOW + 90 * DAY
    for child in store.children.values():
        assert child.body["type"] == "kubernetes.io/tls"
        assert child.body["metadata"]["ownerReferences"][0]["uid"] == "uid"
        assert child.labels == IDENTITY.labels


def test_the_operator_dials_with_the_resources_own_certificate_and_a_name_in_it() -> None:
    store = Store()
    assert store.look().credentials is None
    seen = store.settle()
    data = store.data("queue-tls")
    assert seen.secured
    assert seen.credentials is not None
    assert (seen.credentials.certificate, seen.credentials.key) == (data["tls.crt"], data["tls.key"])
    assert (seen.credentials.authorities, seen.credentials.name) == (data["ca.crt"], "queue.orders.svc")
    assert "PRIVATE" not in repr(seen)


def test_nothing_is_made_or_dialled_with_where_it_is_disabled() -> None:
    assert Store(mode="Disabled").look() == Tls(Store(mode="Disabled").look().plan, secured=False)
    assert Store(mode="Disabled").look().plan.actions == ()


def test_a_certificate_is_renewed_in_time_by_the_same_authority() -> None:
    store = Store()
    store.settle()
    before = store.certificate()
    store.now += 74 * DAY
    store.settle()
    assert store.certificate() == before
    store.now += DAY
    store.settle()
    assert store.certificate().serial_number != before.serial_number
    assert store.writes == ["queue-ca", "queue-tls", "queue-tls"]


def test_while_an_authority_is_replaced_both_are_trusted() -> None:
    store = Store()
    store.settle()
    old = store.data("queue-ca")["tls.crt"]
    while len(authorities_in(store.data("queue-tls")["ca.crt"])) == 1:
        again_at = store.settle().plan.again_at
        assert again_at is not None
        store.now = again_at
    both = store.data("queue-ca")
    assert both["former.crt"] == old
    assert store.data("queue-tls")["ca.crt"] == old + both["tls.crt"]
    store.certificate().verify_directly_issued_by(x509.load_pem_x509_certificate(old))
    store.now += SPREAD
    store.settle()
    store.certificate().verify_directly_issued_by(x509.load_pem_x509_certificate(both["tls.crt"]))
    store.now += SPREAD
    store.settle()
    assert set(store.data("queue-ca")) == {"tls.crt", "tls.key"}
    assert store.data("queue-tls")["ca.crt"] == both["tls.crt"]


def test_with_a_longer_duration_the_old_authority_signs_until_the_new_one_is_known() -> None:
    store = Store()
    store.settle()
    old = x509.load_pem_x509_certificate(store.data("queue-ca")["tls.crt"])
    store.now += DAY
    store.resource = resource(duration="9600h")
    seen = store.settle()
    assert is_signed_by(store.certificate(), old)
    assert store.certificate().not_valid_after_utc == old.not_valid_after_utc
    assert seen.plan.again_at == store.now + SPREAD
    store.now += SPREAD
    store.settle()
    assert not is_signed_by(store.certificate(), old)
    assert store.certificate().not_valid_after_utc == store.now + 400 * DAY


@pytest.mark.parametrize("key", ["tls_crt", "tls_key"])
@pytest.mark.parametrize("secret", ["queue-ca", "queue-tls"])
def test_what_was_damaged_by_hand_is_made_anew(secret: str, key: str) -> None:
    store = Store()
    store.settle()
    store.spoil(secret, **{key: b"nonsense"})
    seen = store.settle()
    assert seen.credentials is not None
    authority = x509.load_pem_x509_certificate(store.data("queue-ca")["tls.crt"])
    store.certificate().verify_directly_issued_by(authority)


def test_clients_have_an_authority_of_their_own_and_each_a_certificate_for_one_end() -> None:
    store = Store()
    store.settle()
    assert "queue-clients" not in store.children
    store.clients = ("client", "billing", "ca")  # whatever name a rule has
    store.settle()
    issued, pods = store.data("queue-clients"), store.data("queue-tls")
    assert issued["ca.crt"] != pods["ca.crt"]
    assert issued["ca.crt"] == store.data("queue-clients-ca")["tls.crt"]
    for name in store.clients:
        found = x509.load_pem_x509_certificate(issued[f"client.{name}.crt"])
        assert (found.subject.rfc4514_string(), dns_names(found)) == (f"CN={name}", (name,))
        usage = found.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        assert list(usage) == [ExtendedKeyUsageOID.CLIENT_AUTH]
        found.verify_directly_issued_by(x509.load_pem_x509_certificate(issued["ca.crt"]))
    store.clients = ("client", "audit")
    store.settle()
    now = store.data("queue-clients")
    assert now["client.client.crt"] == issued["client.client.crt"]
    assert {"client.audit.crt", "client.audit.key"} <= now.keys()
    assert "client.billing.key" not in now


def test_all_certificates_of_clients_are_taken_back_with_their_authority() -> None:
    store = Store()
    store.clients = ("client",)
    store.settle()
    before, pods = store.data("queue-clients"), store.data("queue-tls")
    for name in ("queue-clients-ca", "queue-clients"):
        del store.children[name]
    store.settle()
    now = store.data("queue-clients")
    assert before["ca.crt"] not in now["ca.crt"]
    assert now["client.client.crt"] != before["client.client.crt"]
    assert store.data("queue-tls") == pods


def test_while_an_authority_of_clients_is_replaced_each_of_them_counts() -> None:
    store = Store(duration="240h", renewBefore="48h")
    store.clients = ("client", "billing")
    store.settle()
    first = store.data("queue-clients-ca")["tls.crt"]
    trusted = []
    for _ in range(60):
        store.now += DAY
        store.settle()
        for name in store.clients:
            data = store.data("queue-clients")
            found = x509.load_pem_x509_certificate(data[f"client.{name}.crt"])
            assert found.not_valid_after_utc > store.now
            assert found.issuer in {one.subject for one in authorities_in(data["ca.crt"])}
        trusted.append(len(authorities_in(store.data("queue-clients")["ca.crt"])))
        if trusted[-1] == 2:
            store.now += SPREAD
            store.settle()
    assert set(trusted) == {1, 2}
    assert first not in store.data("queue-clients")["ca.crt"]


def test_names_of_the_user_are_added() -> None:
    store = Store(dnsNames=["queue.example.org", "*.queue.example.org"])
    store.settle()
    assert dns_names(store.certificate()) == (*IDENTITY.names, "queue.example.org", "*.queue.example.org")


# ---- mode Secret


def made(*names: str, until: timedelta = DAY) -> dict[str, bytes]:
    authority = new_authority("mine", NOW, 10 * DAY)
    pair = new_certificate(authority, names or ("queue.example.org",), NOW, until)
    return {"tls.crt": pair.certificate, "tls.key": pair.key, "ca.crt": authority.certificate}


def secret(data: Mapping[str, bytes]) -> dict[str, Any]:
    return {"metadata": {"name": "mine"}, "data": {key: base64.b64encode(each).decode() for key, each in data.items()}}


def given(data: Mapping[str, bytes] | None, *, now: datetime = NOW) -> Tls:
    stored = None if data is None else secret(data)
    return look(resource(mode="Secret", secretName="mine"), (), IDENTITY, stored, now)


def test_what_the_user_gives_is_dialled_with_by_a_name_that_it_holds() -> None:
    data = made("*.queue.example.org", "queue.example.org")
    seen = given(data)
    assert seen.plan.actions == ()
    assert seen.plan.problem is None
    assert seen.credentials is not None
    assert seen.credentials.name == "pod.queue.example.org"
    assert seen.credentials.authorities == data["ca.crt"]


def test_a_secret_that_does_not_exist_is_waited_for() -> None:
    seen = given(None)
    assert seen.secured
    assert seen.credentials is None
    assert seen.plan.problem is not None
    assert seen.plan.problem.reason == "ReferenceNotReady"
    assert "Secret mine does not exist" in seen.plan.problem.message


def test_the_end_of_what_the_user_gives_is_told_and_looked_at_again_before_it() -> None:
    end = NOW + 30 * DAY
    data = made(until=30 * DAY)
    assert (given(data).plan.expires_at, given(data).plan.again_at) == (end, end - EXPIRES_SOON)
    late = given(data, now=end - DAY)
    assert (late.plan.problem, late.plan.expires_at, late.plan.again_at) == (None, end, end)
    over = given(data, now=end + DAY)
    assert over.plan.problem is not None
    assert (over.plan.expires_at, over.plan.again_at) == (end, None)


def foreign_key() -> dict[str, bytes]:
    return {**made(), "tls.key": made()["tls.key"]}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({}, "Secret mine lacks tls.crt, tls.key, ca.crt"),
        ({key: value for key, value in made().items() if key != "ca.crt"}, "lacks ca.crt"),
        ({**made(), "tls.crt": b"nonsense"}, "tls.crt holds no certificate"),
        ({**made(), "ca.crt": b"nonsense"}, "ca.crt holds no certificate"),
        (foreign_key(), "tls.key is not its key"),
        (made(until=timedelta(seconds=-1)), "tls.crt has expired at 2026-06-01 11:59 UTC"),
    ],
)
def test_a_secret_that_cannot_be_used_is_told_in_words(data: dict[str, bytes], words: str) -> None:
    problem = given(data).plan.problem
    assert problem is not None
    assert problem.reason == "ReferenceNotReady"
    assert words in problem.message


def test_an_authority_is_no_certificate_of_a_pod() -> None:
    authority = new_authority("mine", NOW, DAY)
    data = {"tls.crt": authority.certificate, "tls.key": authority.key, "ca.crt": authority.certificate}
    problem = given(data).plan.problem
    assert problem is not None
    assert "names no DNS name" in problem.message


def test_a_pair_that_does_not_match_is_no_pair() -> None:
    one, other = new_authority("one", NOW, DAY), new_authority("other", NOW, DAY)
    assert given({"tls.crt": one.certificate, "tls.key": other.key, "ca.crt": one.certificate}).credentials is None
    assert repr(Pair(b"crt", b"key")) == "Pair(certificate=b'crt')"

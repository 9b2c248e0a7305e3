"""A wrong setting is one line that says what to do; a right one is typed."""

import re
from pathlib import Path

import pytest

from codehub.settings import Settings, SettingsError, environment_name, field_must, load_settings, without_effect

REQUIRED = {"CODEHUB_DATABASE_URL": "postgresql://codehub:hunter22@db/codehub", "CODEHUB_REDIS_URL": "redis://cache"}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for field in Settings.model_fields:
        monkeypatch.delenv(environment_name(field), raising=False)
    for name, value in REQUIRED.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


def test_defaults_are_those_of_the_contracts() -> None:
    settings = load_settings()
    assert (settings.coordinator_idle_interval, settings.coordinator_active_interval) == (15, 1)
    assert (settings.ttl_standby_seconds, settings.ttl_archive_seconds) == (600, 1800)
    assert (settings.max_running_per_user, settings.max_running_global) == (2, 100)
    assert settings.reconciler_max_retries == 3


def test_the_environment_is_read_when_asked_not_when_imported(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("COORDINATOR_IDLE_INTERVAL", "7.5")
    assert load_settings().coordinator_idle_interval == 7.5
    assert load_settings(coordinator_idle_interval=3).coordinator_idle_interval == 3


def test_an_empty_variable_is_an_unset_one(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("TTL_STANDBY_SECONDS", "")
    assert load_settings().ttl_standby_seconds == 600


def test_the_data_directory_may_begin_with_a_tilde(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    environment.setenv("HOME", str(tmp_path))
    assert load_settings().data_dir == tmp_path / ".local/share/codehub"


@pytest.mark.parametrize("name", sorted(REQUIRED))
def test_what_is_secret_has_no_default(name: str, environment: pytest.MonkeyPatch) -> None:
    environment.delenv(name)
    assert re.fullmatch(rf"{name} is not set: give .*, for example {name}=.*; or use 'codehub up'.*", problem())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("COORDINATOR_IDLE_INTERVAL", "abc"),
        ("COORDINATOR_IDLE_INTERVAL", "31"),
        ("COORDINATOR_ACTIVE_INTERVAL", "0"),
        ("COORDINATOR_ACTIVE_INTERVAL", "nan"),
        ("COORDINATOR_TTL_INTERVAL", "inf"),
        ("COORDINATOR_WORKERS", "0"),
        ("MAX_WORKSPACES_PER_USER", "-1"),
        ("CODEHUB_TRUSTED_PROXIES", "*"),
        ("CODEHUB_TRUSTED_PROXIES", "10.0.0.7, proxy"),
        ("RECONCILER_MAX_RETRIES", "-1"),
        ("MAX_RUNNING_GLOBAL", "many"),
        ("MAX_LIFETIME_SECONDS", "-5"),
        ("CODEHUB_ARCHIVE_URL", "ftp://host/x"),
        ("CODEHUB_ARCHIVE_PREFIX", "../up/"),
        ("CODEHUB_ARCHIVE_PREFIX", "no-slash"),
        ("CODEHUB_RUNTIME", "vmware"),
        ("CODEHUB_INSTALL_ID", "Not A Label"),
        ("CODEHUB_LOG_LEVEL", "loud"),
        ("REDIS_CHANNEL_SSE_PREFIX", "two words"),
    ],
)
def test_a_wrong_value_is_one_line_with_a_right_one(name: str, value: str, environment: pytest.MonkeyPatch) -> None:
    environment.setenv(name, value)
    line = problem()
    assert line.startswith(f"{name}={value!r}: must be ")
    assert f"for example {name}=" in line
    assert "\n" not in line


@pytest.mark.parametrize(
    "name", ["CODEHUB_DATABASE_URL", "CODEHUB_REDIS_URL", "CODEHUB_WEBHOOK_URL", "CODEHUB_SECRETS_KEYS"]
)
def test_a_wrong_secret_is_not_repeated(name: str, environment: pytest.MonkeyPatch) -> None:
    environment.setenv(name, "gopher://user:hunter22@host")
    assert problem().startswith(f"{name}: must be ")
    assert "hunter22" not in problem()


def test_the_keys_of_secrets(environment: pytest.MonkeyPatch) -> None:
    key = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
    for right in (key, f"{key},{key}", f"{key}, {key}\n"):
        environment.setenv("CODEHUB_SECRETS_KEYS", right)
        assert load_settings().secrets_keys is not None
    assert key not in repr(load_settings())
    for wrong in (f"{key}x", key[:-4], f"{key};{key}", f"{key},"):
        environment.setenv("CODEHUB_SECRETS_KEYS", wrong)
        assert "codehub admin secrets new-key" in problem()
        assert key[:-4] not in problem()
    environment.setenv("CODEHUB_SECRETS_KEYS", key)
    environment.setenv("CODEHUB_SECRETS_KEYS_FILE", "/run/keys")
    assert problem().endswith("are both set: unset one of them")


def test_each_problem_has_its_line(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("COORDINATOR_WORKERS", "x")
    environment.setenv("GC_GRACE_SECONDS", "y")
    assert len(problem().splitlines()) == 2


@pytest.mark.parametrize("name", ["TTL_STANDBY_SECONDS", "TTL_ARCHIVE_SECONDS"])
def test_a_ttl_outlasts_activity_on_its_way(name: str, environment: pytest.MonkeyPatch) -> None:
    environment.setenv(name, "149")
    assert problem().startswith(f"{name}=149: must be 0 (never) or at least 150 ")
    environment.setenv(name, "150")
    assert getattr(load_settings(), name.lower()) == 150
    environment.setenv(name, "0")
    assert getattr(load_settings(), name.lower()) == 0


def test_secrets_do_not_show_in_a_repr() -> None:
    assert "hunter22" not in repr(load_settings())


def test_a_misspelt_variable_is_pointed_out() -> None:
    environ = {"COORDINATOR_IDLE_INTERVALL": "3", "CODEHUB_API_SERVICE_HOST": "10.0.0.1", "TTL_STANDBY_SECONDS": "600"}
    assert list(without_effect(environ)) == [
        "COORDINATOR_IDLE_INTERVALL is set but is no setting; did you mean COORDINATOR_IDLE_INTERVAL?"
    ]


@pytest.mark.parametrize("name", ["RECONCILER_INTERVAL", "RECONCILER_RETRY_BACKOFF"])
def test_a_setting_of_the_specification_that_was_replaced_is_named(name: str) -> None:
    (line,) = without_effect({name: "10", "RECONCILER_MAX_RETRIES": "3"})
    assert line.startswith(f"{name} is replaced by ")
    assert line.endswith("has no effect")


def test_every_setting_says_what_it_must_be() -> None:
    assert [name for name, field in Settings.model_fields.items() if field_must(field) is None] == []


def problem() -> str:
    with pytest.raises(SettingsError) as caught:
        load_settings()
    return str(caught.value)

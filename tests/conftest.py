"""How hard Hypothesis tries: the same examples in every run. To look further: pytest --hypothesis-profile=thorough."""

from hypothesis import HealthCheck, settings

# A busy machine is no reason to fail.
BUSY = [HealthCheck.too_slow]
settings.register_profile("penstock", deadline=None, suppress_health_check=BUSY, derandomize=True)
settings.register_profile("thorough", deadline=None, suppress_health_check=BUSY, max_examples=1000)

if settings.get_current_profile_name() in {"default", "ci"}:
    settings.load_profile("penstock")

"""How hard Hypothesis tries here. For more than CI does: pytest tests/store --hypothesis-profile=thorough."""

from hypothesis import settings

settings.register_profile("penstock", deadline=None)
settings.register_profile("thorough", deadline=None, max_examples=1000)

if settings.get_current_profile_name() in {"default", "ci"}:
    settings.load_profile("penstock")

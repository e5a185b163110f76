"""The forms of a notification rule, beside the checks that they call."""

from __future__ import annotations

from django import forms
from django.core.exceptions import ValidationError
from django.utils.text import capfirst
from django.utils.translation import gettext as _, gettext_lazy

from sqlqueue_app.conf import get_settings
from sqlqueue_app.models import NotificationChannel, NotificationKind
from sqlqueue_app.monitoring import notifying, rules, webhooks
from sqlqueue_app.status.texts import PLAIN_INPUT


def _one_line(text: str) -> None:
    if not text.isprintable():
        raise ValidationError(_("Expected one line of printable characters."))


class SecretForm(forms.Form):
    """A secret."""

    secret = forms.CharField(
        label=gettext_lazy("Secret"), widget=forms.TextInput(PLAIN_INPUT), validators=[webhooks.validate_secret]
    )


class RuleForm(forms.Form):
    """A rule. Its secret may stay empty if it was initially: then one is stored."""

    name = forms.CharField(label=gettext_lazy("Name"), max_length=rules.MAX_NAME_LENGTH, validators=[_one_line])
    kind = forms.ChoiceField(
        label=gettext_lazy("Condition"), choices=[(value, capfirst(label)) for value, label in NotificationKind.choices]
    )
    subject = forms.CharField(
        label=gettext_lazy("Applies to"), max_length=400, required=False, validators=[_one_line],
        help_text=gettext_lazy("The name of a queue, an endpoint or a check; empty for all."),
    )  # fmt: skip
    threshold = forms.FloatField(
        label=gettext_lazy("Alert above"), required=False,
        help_text=gettext_lazy("A number of messages or seconds, or the least number of instances. Empty for groups and checks."),
    )  # fmt: skip
    channel = forms.ChoiceField(
        label=gettext_lazy("Channel"), choices=[(value, capfirst(label)) for value, label in NotificationChannel.choices]
    )
    target = forms.CharField(
        label=gettext_lazy("Recipients"), widget=forms.Textarea({"rows": 3}),
        help_text=gettext_lazy("Email addresses, one per line; or the URL of a webhook, which begins with https:// or http://."),
    )  # fmt: skip
    throttle_seconds = forms.IntegerField(
        label=gettext_lazy("Minimum interval (s)"), min_value=0, max_value=rules.MAX_THROTTLE_SECONDS,
        initial=rules.DEFAULT_THROTTLE_SECONDS,
        help_text=gettext_lazy("Changes within the interval are collected into the next notification."),
    )  # fmt: skip
    secret = forms.CharField(label=gettext_lazy("Secret"), widget=forms.TextInput(PLAIN_INPUT), required=False)

    def clean_threshold(self) -> float | None:
        """The threshold; None for kinds without one."""
        value: float | None = self.cleaned_data["threshold"]
        takes = rules.THRESHOLDS.get(self.cleaned_data.get("kind", ""))
        if takes is not None and not takes.allows(value):
            raise ValidationError(_("Expected %(expected)s.") % {"expected": takes.words})
        return None if takes is None else value

    def clean_target(self) -> str:
        """A URL, or one address per line, as the channel requires."""
        text, channel = str(self.cleaned_data["target"]), self.cleaned_data.get("channel")
        if channel == NotificationChannel.WEBHOOK:
            webhooks.validate_url(text, get_settings().webhook_hosts)
        return "\n".join(notifying.mail_addresses(text)) if channel == NotificationChannel.MAIL else text

    def clean_secret(self) -> str:
        """The secret of a webhook; empty for mail, and to keep the stored one."""
        if self.cleaned_data.get("channel") != NotificationChannel.WEBHOOK:
            return ""
        if secret := str(self.cleaned_data["secret"]):
            webhooks.validate_secret(secret)
        elif self.initial["secret"]:
            raise ValidationError(_("A webhook needs a secret, which signs what is sent."))
        return secret

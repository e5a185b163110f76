"""Settings of the demo site. Everything that differs between machines comes from the environment:

DATABASE_URL   postgres://user:password@host:5432/name, mssql://user:password@host:1433/name?TrustServerCertificate=yes, or
               sqlite:////path/to/file; default: a SQLite file in VAR_DIR
DEBUG          default: on, because this is a demo
SECRET_KEY     default: generated once and stored in VAR_DIR
ALLOWED_HOSTS  a comma-separated list; default: this machine only
VAR_DIR        the folder for the files of the demo; default: var/ beside this project
CONCURRENCY_MODEL  adaptive, fixed or monitor; default: that of sqlqueue
DELAYED_RETRY_INCREASE  seconds until a failed message is retried; default: 5
PIPELINE_CRON  the schedule of the pipeline: a crontab line, or empty for never; default: every ten minutes, with Spark installed
METRICS_TOKEN  the token for scraping /sqlqueue/metrics; default: none, which disables the page
TRANSACTION_MODE   transaction_scope, sends_atomic_with_receive, receive_only or none; default: that of sqlqueue
"""

from __future__ import annotations

from pathlib import Path

from environ import Env

from project.environment import database_from_url, pipeline_cron, receiving_options, secret_in

BASE_DIR = Path(__file__).resolve().parent.parent
env = Env()

VAR_DIR = Path(env.str("VAR_DIR", default=str(BASE_DIR / "var")))
VAR_DIR.mkdir(parents=True, exist_ok=True)

DEBUG = env.bool("DEBUG", default=True)
SECRET_KEY = env.str("SECRET_KEY", default="") or secret_in(VAR_DIR / "secret-key")
ALLOWED_HOSTS = env.list("ALLOWED_HOSTS", default=["localhost", "127.0.0.1", "[::1]"])

DATABASES = {"default": database_from_url(env.str("DATABASE_URL", default="") or f"sqlite:///{VAR_DIR / 'demo.sqlite3'}")}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "sqlqueue_app",
    "project.shop",
]

# --- the queues ---------------------------------------------------------------------------------------------------------------

SQLQUEUE = {
    # Copies handled and failed messages to files, for the pages "Analytics" and "Old messages"; the worker starts it.
    "PIPELINE": {
        "LAKE": str(VAR_DIR / "lake"),
        "MASTER": "local[1]",
        "CRON": pipeline_cron(env.ENVIRON.get("PIPELINE_CRON")),
    },
    # the destination endpoint of each message type
    "ROUTES": {"Sales.*": "Sales", "Billing.*": "Billing", "Shipping.*": "Shipping"},
    # the web process sends and waits for replies under this name; no worker runs it
    "SEND_AS": "Web",
    "ENDPOINTS": {
        name: {
            "HANDLERS": [f"project.shop.handlers.{name.lower()}"],
            # copies of handled messages, from which the admin draws the message flow
            "AUDIT_QUEUE": "audit",
            # so that failed messages reach the error queue soon
            "DELAYED_RETRIES": 1,
            "DELAYED_RETRY_INCREASE": env.float("DELAYED_RETRY_INCREASE", default=5.0),
            **receiving_options(env.str("CONCURRENCY_MODEL", default=""), env.str("TRANSACTION_MODE", default="")),
        }
        for name in ("Sales", "Billing", "Shipping", "Reports")
    },
    "SCHEDULES": {"orders so far": {"CRON": "*/10 * * * *", "SEND": "Sales.CountOrders"}},
    "METRICS": {"TOKEN": env.str("METRICS_TOKEN", default="") or None},
}

# --- the site -----------------------------------------------------------------------------------------------------------------

ROOT_URLCONF = "project.urls"
WSGI_APPLICATION = "project.wsgi.application"
LOGIN_URL = "login"
LOGIN_REDIRECT_URL = "home"
LOGOUT_REDIRECT_URL = "home"

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "project.security.content_security_policy",
    "django.contrib.sessions.middleware.SessionMiddleware",
    # the admin in the browser's language
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in ("UserAttributeSimilarityValidator", "MinimumLengthValidator", "CommonPasswordValidator")
]

LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
USE_I18N = True
USE_TZ = True

STATIC_URL = "static/"
STATIC_ROOT = VAR_DIR / "static"
STATICFILES_DIRS = [BASE_DIR / "static"]

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(name)s %(message)s"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line"}},
    "loggers": {"shop": {"handlers": ["console"], "level": "INFO"}},
}

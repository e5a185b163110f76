"""URLs: the pages of the shop, login and logout, the admin, the metrics."""

from __future__ import annotations

from django.contrib import admin
from django.contrib.auth.views import LoginView, LogoutView
from django.templatetags.static import static
from django.urls import include, path
from django.views.generic import RedirectView

from project.shop.views import home, parcel

urlpatterns = [
    path("", home, name="home"),
    path("orders/<str:number>/parcel/", parcel, name="parcel"),
    path("login/", LoginView.as_view(), name="login"),
    path("logout/", LogoutView.as_view(), name="logout"),
    path("admin/", admin.site.urls),
    path("sqlqueue/", include("sqlqueue_app.urls")),
    # browsers request it for pages without an icon, such as those of the admin
    path("favicon.ico", RedirectView.as_view(url=static("shop/icon.svg"))),
]

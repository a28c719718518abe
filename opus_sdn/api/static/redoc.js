// Starts the Redoc page.
Redoc.init("/openapi.json", { hideDownloadButtons: false, nativeScrollbars: true }, document.getElementById("docs"));

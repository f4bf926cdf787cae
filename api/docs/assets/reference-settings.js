// Starts Scalar on the reference page. Requests of "Test request" go to the host of this page.
Scalar.createApiReference('#reference', {
  url: '/openapi.json',
  servers: [{ url: location.origin }],
  theme: 'default',
  withDefaultFonts: false,
  hideDarkModeToggle: true,
  hideModels: true,
  // Ours finds operations too.
  hideSearch: true,
  orderRequiredPropertiesFirst: true,
  documentDownloadType: 'none',
  defaultHttpClient: { targetKey: 'shell', clientKey: 'curl' },
  authentication: { preferredSecurityScheme: 'bearer' },
  // Everything that would send data to Scalar's own services.
  hideClientButton: true,
  showDeveloperTools: 'never',
  agent: { disabled: true },
  mcp: { disabled: true },
  telemetry: false,
});

import { openapiDocument } from '../../api/openapi/document.ts';
import type { Site } from '../../api/site.ts';

// Where the customers of tests reach the service, and the document that they read.

/** The settings that an API needs for its site. */
export const SITE_SETTINGS = {
  PUBLIC_URL: 'https://api.example.com',
  SUPPORT_EMAIL: 'support@example.com',
};
export const SITE: Site = {
  publicUrl: SITE_SETTINGS.PUBLIC_URL,
  support: SITE_SETTINGS.SUPPORT_EMAIL,
};
export const openapi = openapiDocument(SITE);

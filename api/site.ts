/** Where customers reach the service and the people who run it. */
export interface Site {
  /** The URL of the API without a slash at the end, such as `https://api.example.com`. */
  readonly publicUrl: string;
  /** The email address or https URL of support. */
  readonly support: string;
}

/**
 * Stands for the support address in the texts of problems and of the OpenAPI document. The texts are
 * written before the address is known.
 */
export const SUPPORT = '{support}';

/** Stands for the URL of the API in the pages, which are written before the URL is known. */
export const EXAMPLE_URL = 'https://api.example.com';

/** Returns true if support is reached by email. Otherwise it has a page. */
export function isEmail(support: string): boolean {
  return !support.startsWith('https:');
}

/** Returns the target of a link to support. */
export function supportLink({ support }: Site): string {
  return isEmail(support) ? `mailto:${support}` : support;
}

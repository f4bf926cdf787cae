/** Where customers reach the service and the people who run it. */
export interface Site {
  /** The URL of the API without a slash at the end, such as `https://api.example.com`. */
  readonly publicUrl: string;
  /** The email address or https URL of support. */
  readonly support: string;
  /** The URL of the operator's privacy policy, which also says how to object. */
  readonly privacyUrl?: string | null;
  /** The companies that get personal data, such as `Hunter, ZeroBounce, AWS (us-east-1)`. */
  readonly subprocessors?: string | null;
  /** The URL of the page that shows incidents. */
  readonly statusUrl?: string | null;
  /** The URL of the page on which customers buy credits. */
  readonly buyCreditsUrl?: string | null;
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

/**
 * Returns the paragraphs of `data.md` that the operator decides, by what stands for them in the
 * page. A paragraph whose setting is missing says so.
 */
export function operatorFacts(site: Site): Readonly<Record<string, string>> {
  const { privacyUrl, subprocessors, statusUrl } = site;
  let privacy = `We have published no privacy policy. To object, write to ${SUPPORT}.`;
  if (privacyUrl) {
    privacy = `Our privacy policy is at <${privacyUrl}>. It says how to object.`;
  }
  let others = `We have published no list. Ask ${SUPPORT} for it.`;
  if (subprocessors) {
    others = `These companies get personal data from us: ${subprocessors}.`;
  }
  let status = `We have no status page. Ask ${SUPPORT} about an incident.`;
  if (statusUrl) {
    status = `Our status page is <${statusUrl}>.`;
  }
  return {
    '{privacy}': privacy,
    '{subprocessors}': others,
    '{status}': status,
  };
}

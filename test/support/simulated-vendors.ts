import type { ExecutionContext } from 'ava';
import { createSimulator } from '../../deploy/local/simulator.ts';

/** What a simulated vendor answered, as far as tests of its wire format look at it. */
export interface WireAnswer {
  readonly status: number;
  readonly headers: Headers;
  readonly body: Record<string, unknown>;
}

const KEY = 'key-of-a-test';

/**
 * A simulator of its own for a test, and questions to its vendors as their documents have them.
 * @param apiKey what callers send; the simulator wants `key-of-a-test`
 */
export async function simulatedVendors(t: ExecutionContext, apiKey = KEY) {
  const running = await createSimulator({ port: 0, speed: 1000, apiKey: KEY });
  t.teardown(() => running.close());
  const { fullenrich, prospeo, hunter } = running.urls;
  const ask = async (url: string, init: RequestInit): Promise<WireAnswer> => {
    const response = await fetch(url, init);
    const body = (await response.json()) as Record<string, unknown>;
    return { status: response.status, headers: response.headers, body };
  };
  const authorization = `Bearer ${apiKey}`;
  return {
    running,
    /** FullEnrich, one contact. */
    submit: (contact: object, name: unknown = 'a test') =>
      ask(`${fullenrich}/contact/enrich/bulk`, {
        method: 'POST',
        headers: { authorization },
        body: JSON.stringify({ name, data: [contact] }),
      }),
    poll: (id: unknown) => ask(`${fullenrich}/contact/enrich/bulk/${id}`, { headers: { authorization } }),
    /** Prospeo. */
    enrich: (data: object | null, rest: object = { only_verified_email: true }) =>
      ask(`${prospeo}/enrich-person`, {
        method: 'POST',
        headers: { 'X-KEY': apiKey },
        body: JSON.stringify({ ...rest, data }),
      }),
    /** Hunter. */
    find: (query: Readonly<Record<string, string>>) =>
      ask(`${hunter}/email-finder?${new URLSearchParams(query)}`, { headers: { 'X-API-KEY': apiKey } }),
  };
}

/** A contact whom each vendor treats as the first name says. */
export function onPurpose(first_name: string) {
  return { first_name, last_name: 'Simulator' };
}

/** The place of work of a contact at FullEnrich, and what is wanted of it. */
export const AT = {
  company_name: 'Any Clinic',
  enrich_fields: ['contact.work_emails', 'contact.personal_emails'],
};

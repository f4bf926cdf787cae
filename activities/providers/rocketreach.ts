import { get, type HttpAnswer, retryAfterMs } from './http.ts';
import type { Provider, Step, Subject } from './port.ts';
import { isRecord, type Profile, parseProfile } from './rocketreach-profile.ts';

export interface RocketReachOptions {
  /** Up to and including the version, such as https://api.rocketreach.co/api/v2. */
  readonly baseUrl: string;
  readonly apiKey: string;
}

/** "Poll about every 3 seconds"; polls are free, but count for the account's 10 requests a second. */
const POLL_MS = 3000;
const MIN_POLL_MS = 100;
const MAX_POLL_MS = 60_000;

/**
 * RocketReach's people lookup, version 2, by NPI (docs.rocketreach.co; its OpenAPI, operations
 * `create_person_lookup` and `check_person_lookup_status`).
 *
 * The vendor has no idempotency key: every `submit` may be charged again, `poll` never is. An answer of 200 that
 * cannot be read is therefore `fatal` `protocol` and not `retry`: asking again would pay again for an answer of
 * the same form. What a failing server or gateway (5xx) writes is never read and always `retry`.
 */
export function createRocketReach({ baseUrl, apiKey }: RocketReachOptions): Provider {
  const base = baseUrl.replace(/\/+$/, '');
  const headers = { 'Api-Key': apiKey, accept: 'application/json' };

  return {
    id: 'rocketreach',

    async submit(subject, signal) {
      const query = new URLSearchParams({
        npi_number: subject.npi,
        lookup_type: 'standard',
        // Cached addresses come unverified; without them the lookup answers once all are verified.
        return_cached_emails: 'false',
      });
      const answer = await get(`${base}/person/lookup?${query}`, headers, signal);
      return stepOf(answer, (json) => stepOfProfile(json, subject));
    },

    async poll(jobRef, subject, signal) {
      const query = new URLSearchParams({ ids: jobRef });
      const answer = await get(`${base}/person/checkStatus?${query}`, headers, signal);
      return stepOf(answer, (json) => stepOfProfiles(json, jobRef, subject));
    },
  };
}

function stepOf(answer: HttpAnswer | null, read: (json: unknown) => Step): Step {
  if (answer === null) return { kind: 'retry', why: 'network', afterMs: null };
  return answer.status === 200 ? read(parseJson(answer.text)) : stepOfStatus(answer);
}

function stepOfStatus({ status, headers }: HttpAnswer): Step {
  switch (status) {
    case 401:
      return { kind: 'fatal', why: 'auth' };
    case 402:
      return { kind: 'fatal', why: 'credits' };
    case 403:
      return { kind: 'fatal', why: 'plan' };
    case 404:
      // The vendor's own 404 is JSON. A web page means a wrong base URL, which must not read as "nobody".
      if (headers.get('content-type')?.startsWith('text/html')) return { kind: 'fatal', why: 'protocol' };
      return { kind: 'miss', reason: 'no_profile' };
    case 429:
      return { kind: 'retry', why: 'rate_limit', afterMs: retryAfterMs(headers) };
    case 451:
      return { kind: 'blocked' };
  }
  // 408 and 425 are a server's or gateway's way to say "not this time", whatever their class says.
  if (status >= 500 || status === 408 || status === 425) {
    return { kind: 'retry', why: 'upstream', afterMs: retryAfterMs(headers) };
  }
  return { kind: 'fatal', why: 'protocol' };
}

/** `checkStatus` answers a list, one profile for each id it knows. */
function stepOfProfiles(json: unknown, jobRef: string, subject: Subject): Step {
  if (!Array.isArray(json)) return { kind: 'fatal', why: 'protocol' };
  const entry: unknown = json.find((item: unknown) => isRecord(item) && String(item.id) === jobRef);
  return entry === undefined ? { kind: 'miss', reason: 'no_profile' } : stepOfProfile(entry, subject);
}

function stepOfProfile(json: unknown, subject: Subject): Step {
  const profile = parseProfile(json);
  if (profile === null) return { kind: 'fatal', why: 'protocol' };
  // The main defence against handing out a stranger's address: what the vendor matched must be who was asked for.
  if (profile.npi !== null && profile.npi !== subject.npi)
    return { kind: 'miss', reason: 'identity_mismatch' };
  if (profile.status === 'failed') return { kind: 'miss', reason: 'lookup_failed' };
  if (profile.status !== 'complete') {
    // "A status other than complete indicates the lookup is not finished": words not seen yet included.
    return { kind: 'pending', jobRef: String(profile.id), pollAfterMs: pollAfterMs(profile) };
  }
  if (profile.candidates.length === 0) return { kind: 'miss', reason: 'no_email' };
  return { kind: 'found', candidates: profile.candidates };
}

function pollAfterMs({ retryAfterSeconds }: Profile): number {
  if (retryAfterSeconds === null) return POLL_MS;
  return Math.round(Math.min(Math.max(retryAfterSeconds * 1000, MIN_POLL_MS), MAX_POLL_MS));
}

function parseJson(text: string | null): unknown {
  if (text === null) return undefined;
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

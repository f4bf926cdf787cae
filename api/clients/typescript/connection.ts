import { EnrichmentError } from './errors.ts';

/** The address and the key with which to call the API, and how long to retry. */
export interface Connection {
  /** Your organization's key or a test key. */
  readonly apiKey: string | undefined;
  /** Address of the service without `/api/v1`: `https:`, or plain `http:` on this machine. */
  readonly baseUrl: string | undefined;
  /**
   * Milliseconds for which a failing call is retried, and for which a batch is polled without a new
   * result. The default is half an hour.
   */
  readonly patienceMs?: number | undefined;
  /** Aborts every call. */
  readonly signal?: AbortSignal | undefined;
}

/** Host names of this machine, as a parsed URL contains them. */
const LOOPBACK = /^(?:localhost|127(?:\.[0-9]+){3}|\[::1\])$/;
/** Paths of the service that people copy with its address. */
const COPIED_PATH = /\/(?:api|docs|openapi\.json|llms(?:-full)?\.txt)(?=\/|$)/;

/**
 * Throws if an option is not usable.
 * @param advice what to pass
 * @throws {EnrichmentError} `option_invalid`
 */
export function checkOption(isUsable: boolean, advice: string): void {
  if (!isUsable) throw new EnrichmentError('option_invalid', advice);
}

/** @throws {EnrichmentError} `npi_invalid` if it is not an array */
export function checkList(npis: readonly string[]): void {
  if (Array.isArray(npis)) return;
  const advice = "Pass the NPIs as an array of strings, such as ['2000000010'].";
  throw new EnrichmentError('npi_invalid', advice);
}

/**
 * Checks what a program in JavaScript may pass in another type.
 * @throws {EnrichmentError} `option_invalid`
 */
export function checkConnection(connection: Connection): void {
  const isObject = Object(connection) === connection;
  checkOption(isObject, 'Pass an object with apiKey and baseUrl.');
  const { patienceMs = 0, signal } = connection;
  const isTime = typeof patienceMs === 'number' && patienceMs >= 0;
  checkOption(isTime, 'patienceMs must be a number of milliseconds.');
  const isSignal = signal === undefined || signal instanceof AbortSignal;
  checkOption(isSignal, 'signal must be an AbortSignal.');
}

/**
 * Checks the API key. `fetch` would repeat an invalid key in its error message.
 * @throws {EnrichmentError} `api_key_unusable`
 */
export function usableApiKey(apiKey = ''): string {
  if (/^[\x21-\x7e]+$/.test(apiKey)) return apiKey;
  let problem = 'contains other characters than a key. Copy it again.';
  if (apiKey === '') {
    problem = 'is missing. Pass it as apiKey.';
  }
  throw new EnrichmentError('api_key_unusable', `The API key ${problem}`);
}

/**
 * Checks the address of the service.
 * @returns the address without slashes at its end
 * @throws {EnrichmentError} `base_url_unusable` if it is not the address of a service, or would send
 * the key unencrypted over a network
 */
export function usableBaseUrl(baseUrl = ''): string {
  const problem = problemOf(baseUrl);
  if (problem === null) return baseUrl.replace(/\/+$/, '');
  throw new EnrichmentError('base_url_unusable', `The address of the service ${problem}`);
}

/** Returns what is wrong with an address and what to do, or null for a usable one. */
function problemOf(baseUrl: string): string | null {
  if (baseUrl === '') {
    return 'is missing. Pass it as baseUrl.';
  }
  const url = URL.parse(baseUrl);
  const isHttp = url?.protocol === 'http:';
  if (!url || !(isHttp || url.protocol === 'https:')) {
    return 'is not a URL. Use one that begins with https://.';
  }
  if (isHttp && !LOOPBACK.test(url.hostname)) {
    return 'would send your API key unencrypted. Use one that begins with https://.';
  }
  const [path] = COPIED_PATH.exec(url.pathname) ?? [];
  if (path) {
    return `contains ${path}. Leave out that part and everything after it.`;
  }
  if (/[?#@]/.test(baseUrl)) {
    return 'contains a ?, a #, or an @. Leave out that part.';
  }
  return null;
}

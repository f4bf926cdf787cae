// The terms of the API contract (api/docs/) as types. All other folders use them.

export const EMAIL_TYPES = ['professional', 'personal'] as const;
export type EmailType = (typeof EMAIL_TYPES)[number];

export const REQUESTED_TYPES = ['any', 'professional', 'personal'] as const;
export type RequestedType = (typeof REQUESTED_TYPES)[number];

/** The outcomes that a sandbox request can simulate (api/docs/sandbox.md, Sandbox). */
export const TEST_OUTCOMES = [
  'professional',
  'personal',
  'found',
  'stored',
  'replayed',
  'slow',
  'greylisted',
  'not_found',
  'failed',
  'deadline',
] as const;
export type TestOutcome = (typeof TEST_OUTCOMES)[number];

/** The results of the free check of an NPI (api/docs/lifecycle.md, Checking before you spend). */
export const CHECK_RESULTS = [
  'lookup',
  'free_repeat',
  'not_an_npi',
  'organization',
  'deactivated',
] as const;
export type CheckResult = (typeof CHECK_RESULTS)[number];

/**
 * The roles of API keys, the lowest first. A role may do all that the roles before it may do
 * (api/docs/lifecycle.md, Keys).
 */
export const KEY_ROLES = ['read', 'member', 'full'] as const;
export type KeyRole = (typeof KEY_ROLES)[number];

export const WEBHOOK_MODES = ['real-time', 'batch'] as const;
export type WebhookMode = (typeof WEBHOOK_MODES)[number];

export type SubmittedAs = 'single' | 'bulk';
export const BATCH_STATUSES = ['in-progress', 'completed'] as const;
export type BatchStatus = (typeof BATCH_STATUSES)[number];
/** A request keeps a final status forever. */
export const FINAL_STATUSES = ['completed', 'not_found', 'failed'] as const;
export type FinalStatus = (typeof FINAL_STATUSES)[number];
export const REQUEST_STATUSES = ['accepted', 'in-progress', ...FINAL_STATUSES] as const;
export type RequestStatus = (typeof REQUEST_STATUSES)[number];
/**
 * The reasons why a request has no email, with their meanings for operators. The reason of a failed
 * request can have brackets, as in `deadline (rate_limit)`: the second word is what the lookup
 * waited for last. Other reasons are sentences of their own, such as `missing phone`.
 */
export const REASONS = {
  auth: 'a vendor rejects our key',
  breaker_open: 'a vendor failed so often that it was not called',
  cancelled: 'an operator canceled it, or its workflow',
  check_digit: 'the check digit of the NPI is wrong',
  credits: 'our account at a vendor has no credits left',
  deactivated: 'the NPI is deactivated',
  deadline: 'no worker or source was reached in time',
  dns_failure: 'a name server did not respond',
  dns_untrusted: 'the name servers gave wrong responses about domains that we know',
  greylisted: 'a mail server asked us to try again later',
  identity_mismatch: 'the last vendor found another person',
  known_miss: 'all vendors recently had no email for the NPI',
  lookup_failed: 'its workflow failed because of a bug',
  lookup_lost: 'its workflow was terminated, or lost with Temporal',
  max_price_per_lookup: 'the last vendor costs more than a lookup may',
  no_source: 'no source could be called',
  none_valid: 'no address passed our checks',
  not_configured: 'the last vendor is no longer configured',
  organization_npi: 'the NPI is that of an organization',
  paused: 'the daily budget of a source was used up, or its account blocked',
  pending: 'a vendor did not finish its search',
  plan: 'our plan at a vendor does not include the search',
  protocol: 'a vendor sent a response that we do not understand',
  rate_limit: 'a source had used up its rate limit',
  shared_lookup: 'another request for the NPI had the turn of their shared lookup',
  suppressed: 'the person or the NPI is suppressed',
  test_outcome: 'a customer asked the sandbox for a failure',
  timeout: 'a name server did not respond in time',
  unanswered: 'a vendor did not respond in time',
  unsent: 'a vendor could not be reached',
  upstream: 'a vendor responded with an error',
  verifier_unavailable: 'no verifier of mailboxes worked',
  verifier_working: 'a verifier did not finish its check',
} as const;
export type Reason = keyof typeof REASONS;
/**
 * The reasons that customers may know, because NPPES or the number itself shows them too. All others
 * read like a lookup without an email.
 */
export const PUBLIC_REASONS = [
  'check_digit',
  'organization_npi',
  'deactivated',
] as const satisfies readonly Reason[];
export type PublicReason = (typeof PUBLIC_REASONS)[number];
/** The reasons why an NPI is not looked up. */
export type NpiRefusal = Extract<
  Reason,
  'organization_npi' | 'deactivated' | 'suppressed'
>;

/** The reasons why an upload of the console stops before all its NPIs are submitted. */
export const STOP_REASONS = ['customer', 'operator', 'credits', 'key'] as const;
export type StopReason = (typeof STOP_REASONS)[number];
export const DELIVERY_STATES = ['pending', 'delivered', 'failed', 'none'] as const;
export type DeliveryState = (typeof DELIVERY_STATES)[number];

/**
 * The reasons why a delivery attempt did not get a complete 2xx response.
 *
 * Four reasons come with a status code. `redirect` means 3xx, and `http_status` means any other
 * status except 2xx. `body_timeout` and `body_broken` mean that the status was 2xx but the body did
 * not end. Such an attempt still counts as delivered. With all other reasons, there was no status
 * code.
 */
export const ATTEMPT_REASONS = [
  'redirect',
  'http_status',
  'body_timeout',
  'body_broken',
  'blocked_address',
  'blocked_by_operator',
  'unproven_host',
  'secret_unreadable',
  'dns_not_found',
  'dns_failed',
  'refused',
  'unreachable',
  'timeout_connect',
  'timeout_total',
  'reset',
  'closed',
  'tls_certificate',
  'tls_name',
  'tls_handshake',
  'not_http',
  'headers_too_large',
  'network',
] as const;
export type AttemptReason = (typeof ATTEMPT_REASONS)[number];

export const LEDGER_KINDS = ['grant', 'adjustment', 'hold', 'charge', 'release'] as const;
export type LedgerKind = (typeof LEDGER_KINDS)[number];
export type StoredVerdict = 'valid' | 'catch_all' | 'risky' | 'invalid' | 'unknown';
export type VendorAttemptState =
  | 'submitting'
  | 'pending'
  | 'found'
  | 'miss'
  | 'skip'
  | 'blocked'
  | 'retry'
  | 'fatal'
  | 'lost';

/**
 * The kinds of rows in the table email_checks, which holds the evidence about addresses.
 * db/schema/lookups.ts explains each kind.
 */
export type CheckKind = 'named' | 'identity' | 'local' | 'verifier' | 'verdict';
/** Reasons to reject an address because of its domain's DNS records. */
export const DNS_REFUSALS = [
  'no_mx',
  'null_mx',
  'bad_mx',
  'parked',
  'disposable',
  'nxdomain',
] as const;
export type DnsRefusal = (typeof DNS_REFUSALS)[number];
/** The types of electronic endpoints that NPPES distinguishes. */
export const ENDPOINT_KINDS = [
  'DIRECT',
  'CONNECT',
  'SOAP',
  'FHIR',
  'REST',
  'OTHERS',
] as const;
export type EndpointKind = (typeof ENDPOINT_KINDS)[number];
export type ImportKind = 'nppes' | 'clinicians' | 'domains' | 'emails' | 'suppressions';
export type SuppressionKind = 'npi' | 'email' | 'domain';
export type SuppressionOrigin = 'import' | 'vendor' | 'erasure' | 'operator';
/**
 * The end of the id of a vendor's second half, which looks only for personal emails. Some vendors
 * charge for each type, so a request of any type calls this half last.
 */
const PERSONAL_HALF = '-personal';

/** Returns the id of the half of a vendor that looks only for personal emails. */
export function personalHalfOf(vendor: string): string {
  return `${vendor}${PERSONAL_HALF}`;
}

export function isPersonalHalf(vendor: string): boolean {
  return vendor.endsWith(PERSONAL_HALF);
}

/**
 * Returns the vendor of a half. Both halves use one account, so they share limits, breaker, and
 * spending, and count as one source of an address. The SQL function account_of does the same.
 */
export function accountOf(vendor: string): string {
  return isPersonalHalf(vendor) ? vendor.slice(0, -PERSONAL_HALF.length) : vendor;
}

/** Our knowledge of a person's employer: the email domain, only the name, or nothing. */
export const EMPLOYER_KINDS = ['domain', 'name', 'unknown'] as const;
export type EmployerKind = (typeof EMPLOYER_KINDS)[number];

/** The `source` of evidence that comes from this service itself. */
export const SERVICE = 'service';

/**
 * The source of addresses that the service writes itself, in the form of an employer's addresses.
 */
export const PATTERN_SOURCE = 'pattern';

import type { NamedCandidate } from '../../db/lookups/candidates.ts';
import type { MailDomain } from '../../db/lookups/mail-domains.ts';
import type { Rate } from '../../db/lookups/sources.ts';
import type { EmailType, RequestedType, StoredVerdict } from '../../db/words.ts';
import {
  byStatus,
  type HttpResponse,
  type Meanings,
  protocol,
  type Trouble,
} from '../http/client.ts';

/** The verdict on an address. Only an address with the verdict `valid` is returned to a client. */
export type Verdict = StoredVerdict;

/** A name as the vendor gives it: in parts, or as one text. */
export type GivenName =
  | { readonly kind: 'parts'; readonly first: string; readonly last: string }
  | { readonly kind: 'full'; readonly full: string };

/**
 * The person that the vendor's response is about, as far as the response says. It is compared with
 * NPPES before any address is accepted.
 */
export interface Identity {
  /** The NPI in the response: 10 digits. */
  readonly npi: string | null;
  readonly name: GivenName | null;
  /** The state in the response, as the two-letter code of a US state. */
  readonly state: string | null;
  /** The registrable domain of the person's current employer, in lowercase. */
  readonly employerDomain: string | null;
}

export interface PersonName {
  /**
   * The first name in the usual spelling, such as `Mary Jo`. Empty if it is unknown, or if the
   * person has only one name, which is then the last name.
   */
  readonly first: string;
  readonly last: string;
}

/** A person as recorded in NPPES. */
export interface Person extends PersonName {
  readonly middle: string | null;
  /**
   * The number that distinguishes people of the same name in one family: 1 for `Sr`, 2 for `Jr` and
   * `II`, and so on. Null if the name has no such number.
   */
  readonly generation: number | null;
  /** Other names of the person in NPPES, such as a name before a marriage. */
  readonly otherNames: readonly PersonName[];
  /**
   * Further given names in vendors' profiles of the person, folded. An address may contain them,
   * but they don't identify the person, because a profile may be wrong.
   */
  readonly profileNames: readonly string[];
  /** Other spellings of the surname in vendors' profiles of the person. */
  readonly profileSurnames: readonly string[];
  readonly practice: {
    readonly line1: string | null;
    readonly city: string | null;
    readonly state: string | null;
    /** The five-digit ZIP code. */
    readonly zip: string | null;
  };
  /** Two-letter codes of the other states in which the person practices. */
  readonly otherStates: readonly string[];
}

/** The person's likely employer. Vendors that search by name need it in addition to the name. */
export interface Organization {
  readonly name: string | null;
  /** The registrable domain in lowercase. */
  readonly domain: string | null;
  /**
   * The kind of the strongest evidence for this employer, as named in
   * `activities/person/employer.ts`.
   */
  readonly source: string;
  /** How likely it is that the person works for this organization, from 0 to 1. */
  readonly confidence: number;
}

/** The form of most addresses at a domain. */
export interface Pattern extends Pick<MailDomain, 'domain' | 'isVerifiable'> {
  readonly format: Format;
}

/**
 * A form of addresses. The `f`, `m`, and `l` are initials. In `numbered`, a few letters and a number
 * stand for the person: `jks1234`.
 */
export type Format =
  | 'first.last'
  | 'first_last'
  | 'first-last'
  | 'firstlast'
  | 'last.first'
  | 'lastfirst'
  | 'flast'
  | 'f.last'
  | 'fmlast'
  | 'lastf'
  | 'last.f'
  | 'lastfm'
  | 'firstl'
  | 'first.l'
  | 'first'
  | 'last'
  | 'numbered';

/** The data about a provider that a vendor request can use. */
export interface Subject {
  /** The NPI: 10 ASCII digits with a correct check digit. */
  readonly npi: string;
  readonly requestedType: RequestedType;
  /** Null if the NPI is in neither NPPES nor the registry. */
  readonly person: Person | null;
  /** The likeliest employer. Null if none is known. */
  readonly organization: Organization | null;
  /** Less likely employers, the likeliest first. */
  readonly otherOrganizations: readonly Organization[];
  /**
   * Surnames of other providers with the same phone, address, or organization, folded as by
   * `nameWords` and joined. An address that contains one of them may be theirs.
   */
  readonly strangers: readonly string[];
  /** The forms of the addresses at the domains of the likely employers, as far as we know them. */
  readonly patterns: readonly Pattern[];
  /**
   * The address that the person may have at a clear employer, in the form of colleagues' addresses.
   * Null if we can't write one.
   */
  readonly writtenEmail: string | null;
}

/**
 * Data about a person that a vendor requires. `organization` means the name or the domain of the
 * employer. `pattern` means that we can write the person's address at the employer ourselves.
 */
export type Need = 'npi' | 'name' | 'organization' | 'address' | 'pattern';

/** Returns the data that a vendor needs and that we do not have, in the order of `needs`. */
export function missingOf(
  { person, organization, writtenEmail }: Subject,
  needs: readonly Need[],
): Need[] {
  const practice = person?.practice;
  const met: Readonly<Record<Need, boolean>> = {
    npi: true,
    name: Boolean(person?.first && person.last),
    organization: Boolean(organization?.name || organization?.domain),
    address: Boolean(practice?.line1 && practice.state && practice.zip),
    pattern: writtenEmail !== null,
  };
  return needs.filter((need) => !met[need]);
}

/**
 * A person with their employer, as needed by vendors that search by name. The employer has a name,
 * a domain, or both.
 */
export type Employee = Exclude<ReturnType<typeof employeeOf>, { kind: 'skip' }>;

/**
 * Returns the person with their likeliest employer.
 * @returns `skip` with the missing data, if we know neither the name nor the domain of the
 * employer, or if we do not know the person's name
 */
export function employeeOf(subject: Subject) {
  const missing = missingOf(subject, ['name', 'organization']);
  const { person, organization } = subject;
  if (missing.length > 0 || person === null || organization === null) {
    return { kind: 'skip', missing } as const;
  }
  const { first, last } = person;
  return {
    kind: 'employee',
    first,
    last,
    company: organization.name,
    domain: organization.domain,
  } as const;
}

/**
 * The result of one vendor request.
 * - `pending`: the vendor is working on the job; poll it with `jobRef` after `pollAfterMs`
 * - `found`: the response contains at least one address, whether good or bad
 * - `miss`: the vendor says that it has no such person or no email; never used if the vendor only
 *   gave up
 * - `skip`: no request was made, because data that the vendor needs is unknown
 * - `blocked`: the person asked not to be processed
 * - `retry`: there is no usable response now; if `why` is `unanswered` and the vendor's
 *   `repeatIsFree` is false, another request may cost credits again
 * - `fatal`: the vendor will not serve us until an operator acts
 */
export type Step =
  | { readonly kind: 'pending'; readonly jobRef: string; readonly pollAfterMs: number }
  | {
      readonly kind: 'found';
      /**
       * The candidates, which we have not checked yet. The vendor's email type is used only if our
       * own classification by domain cannot decide.
       */
      readonly candidates: readonly NamedCandidate[];
      readonly identity: Identity;
      /**
       * True if the identity only repeats our input. Then it does not prove that the response is
       * about this person.
       */
      readonly repeatsInput: boolean;
      /** The cost of the response in the vendor's credits, if reported or documented. */
      readonly credits?: number;
    }
  | { readonly kind: 'miss'; readonly reason: string; readonly credits?: number }
  | { readonly kind: 'skip'; readonly missing: readonly string[] }
  | { readonly kind: 'blocked' }
  | Trouble;

/** The vendor lost the job or stopped working on it. This says nothing about the person. */
export const GIVEN_UP = {
  kind: 'retry',
  why: 'upstream',
  afterMs: null,
} as const satisfies Step;

/**
 * Returns a function that reads a vendor's response by its HTTP status. For every vendor, 451 means
 * that the person must not be processed. A 451 with a web page comes from a firewall and does not
 * count.
 */
export function stepBy(meanings: Meanings<Step>) {
  return byStatus<Step>({ 451: unlessPage({ kind: 'blocked' }), ...meanings });
}

/**
 * Returns a reader for a status with a special meaning: no such person, an unknown job, a person
 * who must not be processed. A vendor sends such a status with JSON. If it comes with a web page,
 * the base URL is wrong or a gateway sent it, so it has no special meaning.
 */
export function unlessPage(meaning: Step) {
  return ({ headers }: HttpResponse): Step => {
    if (headers.get('content-type')?.startsWith('text/html')) {
      return protocol('body');
    }
    return meaning;
  };
}

/** Facts from the documentation of a source. Each source's own file defines them. */
export interface SourceFacts {
  /**
   * A short name in lowercase that never changes. It is stored with the source's results and shown
   * to operators.
   */
  readonly id: string;
  /** The base of the request paths. Null for a server that each operator runs. */
  readonly url: string | null;
  readonly rates: readonly Rate[];
  /** The timeout of one call, in milliseconds. */
  readonly callMs: number;
}

export interface VendorFacts extends SourceFacts {
  readonly needs: readonly Need[];
  /** The types of email that the vendor can find. */
  readonly gives: readonly EmailType[];
  /**
   * True if the vendor reports when it last saw the mailbox respond. Without this date, an address
   * can become valid only through a verifier.
   */
  readonly isDated: boolean;
  /** True if a request can be repeated at no cost after its response was lost. */
  readonly repeatIsFree: boolean;
  /**
   * The time in milliseconds that a lookup waits for this vendor before it goes on to the next one.
   */
  readonly capMs: number;
}

/** Returns the types of email that satisfy a request for this type. */
export function typesOf(requestedType: RequestedType): EmailType[] {
  if (requestedType === 'any') return ['professional', 'personal'];
  return [requestedType];
}

/** The options with which every built-in vendor is created. */
export interface VendorOptions {
  /** The start of all URLs of the vendor, including the version if there is one. */
  readonly baseUrl: string;
  readonly apiKey: string;
  /** The timeout of one call in milliseconds. By default, the vendor's `callMs` is used. */
  readonly callMs?: number;
}

/**
 * An adapter that turns an NPI into candidates. Synchronous vendors respond in `submit`.
 * Asynchronous vendors return `pending` and are polled with `poll`. Neither method waits between
 * calls, because the workflow does so. Both take at most `callMs`. They throw only if `signal` is
 * aborted, and then throw the reason of the abort. Every vendor response, and a missing response,
 * is a `Step`.
 */
export interface Vendor
  extends Pick<
    VendorFacts,
    'id' | 'needs' | 'gives' | 'isDated' | 'repeatIsFree' | 'callMs'
  > {
  /**
   * Returns the most that one lookup can cost, in the vendor's credits. The amount is reserved
   * before the request.
   */
  cost(requestedType: RequestedType): number;
  submit(subject: Subject, signal: AbortSignal): Promise<Step>;
  poll(jobRef: string, subject: Subject, signal: AbortSignal): Promise<Step>;
}

// A vendor that `askingByEmployer` creates has no jobs, so we store one of these values as its job
// reference. It says whether to search at the first or at the second employer.
const AT_FIRST = '0';
const AT_NEXT = '1';

/**
 * Creates a vendor that responds at once and charges one credit for a result and nothing for a
 * miss. If the person is not known at the likeliest employer, the next employer is tried too. The
 * second request may succeed if the first employer was wrong. We make it in `poll` instead of
 * `submit`, so that the vendor's limits apply to it and a crash cannot lose it.
 * @param ask sends one request to the vendor. It may send the same request several times, because
 * each poll repeats it
 */
export function askingByEmployer(
  facts: Omit<Vendor, 'cost' | 'submit' | 'poll'>,
  ask: (employee: Employee, signal: AbortSignal) => Promise<Step>,
): Vendor {
  const askAt: Vendor['poll'] = async (jobRef, subject, signal) => {
    const [next = null] = subject.otherOrganizations;
    const isFirst = jobRef !== AT_NEXT;
    const organization = isFirst ? subject.organization : next;
    const employee = employeeOf({ ...subject, organization });
    const step = employee.kind === 'skip' ? employee : await ask(employee, signal);
    if (step.kind === 'pending') return { ...step, jobRef };
    if (isFirst && next && step.kind === 'miss' && step.credits === 0) {
      return { kind: 'pending', jobRef: AT_NEXT, pollAfterMs: 0 };
    }
    // If the second employer is skipped, the result is still the miss at the first one.
    if (!isFirst && step.kind === 'skip') {
      return { kind: 'miss', reason: 'no_match', credits: 0 };
    }
    return step;
  };
  return {
    ...facts,
    cost: () => 1,
    submit: (subject, signal) => askAt(AT_FIRST, subject, signal),
    poll: askAt,
  };
}

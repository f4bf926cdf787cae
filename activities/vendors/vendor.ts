import type { NamedCandidate } from '../../db/lookups/candidates.ts';
import type { Rate } from '../../db/lookups/sources.ts';
import type { EmailType, StoredVerdict, WantedType } from '../../db/words.ts';
import {
  byStatus,
  type HttpAnswer,
  type Meanings,
  protocol,
  type Trouble,
} from '../http/client.ts';
import type { Field } from '../http/fields.ts';
import { usState } from '../person/us-states.ts';

/** What is thought of one address. Only `valid` is ever given to a client. */
export type Verdict = StoredVerdict;

/** A name as somebody gives it: in parts, or in one piece. */
export type GivenName =
  | { readonly kind: 'parts'; readonly first: string; readonly last: string }
  | { readonly kind: 'full'; readonly full: string };

/**
 * Whom the vendor's answer is about, as far as the vendor says; compared with NPPES before anything
 * is accepted.
 */
export interface Identity {
  /** 10 digits. */
  readonly npi: string | null;
  readonly name: GivenName | null;
  /** Two-letter code of a US state. */
  readonly state: string | null;
}

export interface PersonName {
  /**
   * As people write it: `Mary Jo`. Empty for people with one name, which is the last, or whose
   * first nobody knows.
   */
  readonly first: string;
  readonly last: string;
}

/** An individual as NPPES has them. */
export interface Person extends PersonName {
  readonly middle: string | null;
  /**
   * By which people of one name and family tell themselves apart: 1 for `Sr`, 2 for `Jr` and `II`,
   * and so on.
   */
  readonly generation: number | null;
  /** Other names on record, such as one before a marriage. */
  readonly otherNames: readonly PersonName[];
  readonly practice: {
    readonly line1: string | null;
    readonly city: string | null;
    readonly state: string | null;
    /** Five digits. */
    readonly zip: string | null;
  };
  /** Two-letter codes of the states they practise in beside the primary one. */
  readonly otherStates: readonly string[];
}

/**
 * Where the person works, as far as it can be derived; what vendors that search by name need beside
 * the name.
 */
export interface Organization {
  readonly name: string | null;
  /** Registrable, lower case. */
  readonly domain: string | null;
  /** The evidence that weighs most, as `activities/person/employer.ts` calls it. */
  readonly source: string;
  /** 0 to 1. */
  readonly confidence: number;
}

/** What is known of the provider when a vendor is asked. */
export interface Subject {
  /** 10 ASCII digits with a correct check digit. */
  readonly npi: string;
  readonly wantedType: WantedType;
  /** Null if neither NPPES nor the registry has the NPI. */
  readonly person: Person | null;
  /** The likeliest employer. */
  readonly organization: Organization | null;
  /** Less likely ones, the likelier first. */
  readonly otherOrganizations: readonly Organization[];
}

/**
 * What a vendor needs to be told about a person before it can be asked; `organization`: a name or a
 * domain of it.
 */
export type Need = 'npi' | 'name' | 'organization' | 'address';

/** Which needs of a vendor are not met by what is known, in the order given. */
export function missingOf({ person, organization }: Subject, needs: readonly Need[]): Need[] {
  const met: Readonly<Record<Need, boolean>> = {
    npi: true,
    name: Boolean(person?.first && person.last),
    organization: Boolean(organization?.name || organization?.domain),
    address: Boolean(person?.practice.line1 && person.practice.state && person.practice.zip),
  };
  return needs.filter((need) => !met[need]);
}

/**
 * A person at their place of work, as vendors that search by name are told of them: its name, its
 * domain or both.
 */
export type Employee = Exclude<ReturnType<typeof employeeOf>, { kind: 'skip' }>;

/**
 * @returns `skip` with all that is missing, if the name or both names of the organization are not
 * known
 */
export function employeeOf(subject: Subject) {
  const missing = missingOf(subject, ['name', 'organization']);
  const { person, organization } = subject;
  if (missing.length > 0 || person === null || organization === null)
    return { kind: 'skip', missing } as const;
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
 * One step of a conversation with a vendor.
 * - `pending`: the vendor works on it; ask again with `jobRef` after `pollAfterMs`
 * - `found`: an answer with candidates, good or bad
 * - `miss`: a definitive "nobody" or "nothing"; never what a vendor says that gave up
 * - `skip`: not asked, because what the vendor needs is not known
 * - `blocked`: the person asked not to be processed
 * - `retry`: not answered; to ask again costs again if `why` is `unanswered` and the vendor's
 *   `repeatIsFree` is false
 * - `fatal`: the vendor will not serve us until an operator acts
 */
export type Step =
  | { readonly kind: 'pending'; readonly jobRef: string; readonly pollAfterMs: number }
  | {
      readonly kind: 'found';
      /**
       * Before our own checks. What the vendor calls them breaks ties alone: our own classification
       * decides.
       */
      readonly candidates: readonly NamedCandidate[];
      readonly identity: Identity;
      /** Whether that only repeats whom we asked about, and so proves nothing. */
      readonly isEcho: boolean;
      /** What the answer cost, in the vendor's credits, if it says or documents it. */
      readonly credits?: number;
    }
  | { readonly kind: 'miss'; readonly reason: string; readonly credits?: number }
  | { readonly kind: 'skip'; readonly missing: readonly string[] }
  | { readonly kind: 'blocked' }
  | Trouble;

/** The vendor lost the question or stopped working on it, which says nothing of the person. */
export const GIVEN_UP = { kind: 'retry', why: 'upstream', afterMs: null } as const satisfies Step;

/**
 * Reads a vendor's answer by its status. 451 means the same to every vendor; a firewall's is a web
 * page.
 */
export function stepBy(meanings: Meanings<Step>) {
  return byStatus<Step>({ 451: unlessPage({ kind: 'blocked' }), ...meanings });
}

/**
 * A status by which a vendor means something: nobody, a job it does not know, a person not to be
 * processed. Its own answer is JSON: a web page means a wrong base URL, or a gateway, which must
 * not read as any of them.
 */
export function unlessPage(meaning: Step) {
  return ({ headers }: HttpAnswer): Step =>
    headers.get('content-type')?.startsWith('text/html') ? protocol('body') : meaning;
}

/**
 * What the documents of a source say of it, written once, in its own file; all else starts from
 * here.
 */
export interface SourceFacts {
  /** Short, stable, lower case: stored with what it says, shown to operators. */
  readonly id: string;
  /** What its paths are added to; null for a server that everybody runs on their own. */
  readonly url: string | null;
  readonly rates: readonly Rate[];
  /** The most one call may take. */
  readonly callMs: number;
}

export interface VendorFacts extends SourceFacts {
  readonly needs: readonly Need[];
  /** The types of email it can find. */
  readonly gives: readonly EmailType[];
  /**
   * Whether it says when it last saw a mailbox answer: what is not dated is never valid without a
   * verifier.
   */
  readonly isDated: boolean;
  /** Whether a question whose answer was lost may be asked again at no cost. */
  readonly repeatIsFree: boolean;
  /** How long a lookup waits for it before it goes on to the next vendor. */
  readonly capMs: number;
}

/** The types of email that a request for this one may be answered with. */
export function typesOf(wantedType: WantedType): EmailType[] {
  return wantedType === 'any' ? ['professional', 'personal'] : [wantedType];
}

/** What every vendor with a file of its own is made from. */
export interface VendorOptions {
  /** Up to and including the version, if its paths have one. */
  readonly baseUrl: string;
  readonly apiKey: string;
  /** In the place of its usual one. */
  readonly callMs?: number;
}

/**
 * Turns an NPI into candidates. Synchronous vendors answer from `submit`; asynchronous ones answer
 * `pending` and are asked again through `poll`. Neither waits: the workflow owns every delay. Both
 * take `callMs` at most, and throw only what aborting `signal` throws; every answer of the vendor,
 * and its absence, is a `Step`.
 */
export interface Vendor
  extends Pick<VendorFacts, 'id' | 'needs' | 'gives' | 'isDated' | 'repeatIsFree' | 'callMs'> {
  /** The most one question may cost, in the vendor's credits: set aside before it is asked. */
  cost(wantedType: WantedType): number;
  submit(subject: Subject, signal: AbortSignal): Promise<Step>;
  poll(jobRef: string, subject: Subject, signal: AbortSignal): Promise<Step>;
}

/**
 * A vendor that answers at once, takes one credit for an answer and nothing for a miss: about who
 * is not known at the likeliest employer it is asked at the next one too. The second question costs
 * a call, and may find what the first was wrong about. It is put as a poll, so that the vendor's
 * limits are asked again and a crash loses nothing.
 * @param ask may be repeated: a poll of a question is the question
 */
export function askingByEmployer(
  facts: Omit<Vendor, 'cost' | 'submit' | 'poll'>,
  ask: (employee: Employee, signal: AbortSignal) => Promise<Step>,
): Vendor {
  const askAt = async (jobRef: string, subject: Subject, signal: AbortSignal): Promise<Step> => {
    const [next] = subject.otherOrganizations;
    const isFirst = jobRef !== AT_NEXT;
    const employee = employeeOf(isFirst ? subject : { ...subject, organization: next ?? null });
    const step = employee.kind === 'skip' ? employee : await ask(employee, signal);
    if (step.kind === 'pending') return { ...step, jobRef };
    if (isFirst && next && step.kind === 'miss' && step.credits === 0) {
      return { kind: 'pending', jobRef: AT_NEXT, pollAfterMs: 0 };
    }
    // What the vendor cannot be asked about one employer does not undo its word about the other.
    return step.kind === 'skip' && !isFirst
      ? { kind: 'miss', reason: 'no_match', credits: 0 }
      : step;
  };
  return {
    ...facts,
    cost: () => 1,
    submit: (subject, signal) => askAt(AT_FIRST, subject, signal),
    poll: askAt,
  };
}

/** What such a vendor is asked about, in the place of a job. */
const [AT_FIRST, AT_NEXT] = ['0', '1'];

/**
 * Whatever else it is, it must be text that PostgreSQL stores: no NUL, no lone surrogate, no
 * megabyte.
 */
const STORABLE = /^[^\p{C}]{1,320}$/u;

/** Each may be a paid check. */
const CANDIDATES_AT_MOST = 20;

/** The field an address stands in, and what a vendor says of it. */
export interface Claim extends Omit<NamedCandidate, 'email'> {
  readonly email: Field;
}

/**
 * A candidate for each address that could be one, the first claim about it if it is named twice; of
 * very many some, of which valid ones first.
 * @throws {FieldError} if an address is something other than text
 */
export function candidatesOf(claims: Iterable<Claim>): NamedCandidate[] {
  const byEmail = new Map<string, NamedCandidate>();
  for (const { email: field, ...claim } of claims) {
    const email = field.text();
    if (email === null || !STORABLE.test(email) || byEmail.has(email.toLowerCase())) continue;
    byEmail.set(email.toLowerCase(), { email, ...claim });
  }
  const isValid = ({ verdict }: NamedCandidate) => Number(verdict === 'valid');
  return [...byEmail.values()]
    .toSorted((a, b) => isValid(b) - isValid(a))
    .slice(0, CANDIDATES_AT_MOST);
}

/** What a vendor names, or a miss if nothing of it could be an address. */
export function stepOfCandidates(found: Omit<Extract<Step, { kind: 'found' }>, 'kind'>): Step {
  const { candidates, credits } = found;
  if (candidates.length > 0) return { kind: 'found', ...found };
  return { kind: 'miss', reason: 'no_email', ...(credits === undefined ? {} : { credits }) };
}

/**
 * Whom an answer is about, by the fields that say it; no name if too little of it is given.
 * @throws {FieldError} if a name or a state is something other than text
 */
export function identityOf(
  fields: {
    readonly [part in 'npi' | 'first' | 'last' | 'full' | 'state' | 'country']?: Field | null;
  },
): Identity {
  const textOf = (part: keyof typeof fields) => fields[part]?.text() ?? null;
  const [first, last, full] = [textOf('first'), textOf('last'), textOf('full')];
  const whole = full ? ({ kind: 'full', full } as const) : null;
  return {
    npi: fields.npi?.scalar() || null,
    name: first && last ? { kind: 'parts', first, last } : whole,
    state: usState(textOf('state'), textOf('country')),
  };
}

/**
 * ISO 8601, as vendors write it; UTC if it names no zone. @returns null if it is absent or anything
 * else
 */
export function timestampOf(text: string | null): Date | null {
  const match =
    /^([0-9]{4}-[0-9]{2}-[0-9]{2})(?:[Tt ]([0-9:]{5,8}(?:\.[0-9]+)?) ?([Zz]|UTC|[+-][0-9]{2}:?[0-9]{2})?)?$/.exec(
      text ?? '',
    );
  if (!match) return null;
  const [, day, time = '00:00:00', zone = 'Z'] = match;
  const date = new Date(`${day}T${time}${zone === 'UTC' ? 'Z' : zone.toUpperCase()}`);
  // PostgreSQL knows no year 0, and no vendor a mailbox before there was email.
  return date.getUTCFullYear() >= 1970 && date.getUTCFullYear() < 9999 ? date : null;
}

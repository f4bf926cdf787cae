import { type Finding, search } from './knowledge.ts';
import type { BySituation } from './magic.ts';
import { hunterVerifier } from './verifiers.ts';
import { type Answer, aboutPerson, contactOf, type Memory, ok, type Question, type Source } from './wire.ts';

const DAY_MS = 86_400_000;
const RUNNING: Answer = { status: 202, body: {} };

/** `verification.status`; `valid` in any other situation. */
const STATUS: BySituation<string> = {
  catchall: 'accept_all',
  unknown: 'unknown',
  missing: 'invalid',
  webmail: 'webmail',
  disposable: 'disposable',
};

/**
 * Hunter's wire format, version 2, as its OpenAPI and its documentation give it: GET /email-finder, charged for an
 * email, and GET /email-verifier. 202 means that the same question is to be asked again, 403 that it came too fast, 429 that the plan is used up.
 */
export const hunter: Source = {
  base: '/hunter/v2',
  deny({ headers, query }, apiKey) {
    const bearer = headers.authorization?.replace(/^bearer /i, '');
    return [headers['x-api-key'], bearer, query.get('api_key')].includes(apiKey)
      ? null
      : problem(401, 'authentication_failed', 'No user found for the API key supplied');
  },
  routes: {
    'GET /email-finder': aboutPerson(
      find,
      {
        nobody: problem(404, 'not_found', 'No email was found'),
        failing: problem(500, 'internal_error', 'Something went wrong on our side'),
        broke: problem(429, 'too_many_requests', 'The limit of searches of your plan is reached'),
        optedout: problem(
          451,
          'claimed_email',
          'This person asked us to stop processing their personal data',
        ),
        limited: problem(403, 'forbidden', 'The rate limit is reached'),
      },
      result,
    ),
    'GET /email-verifier': hunterVerifier,
  },
};

function find({ query }: Question): Finding | Answer {
  const contact = contactOf(Object.fromEntries(query), query.get('domain'), query.get('company'));
  if (contact) return search('hunter', contact);
  return problem(400, 'wrong_params', 'You are missing a name, or a domain or company');
}

function result(finding: Finding, _question: Question, memory: Memory): Answer {
  const { subject, person, workEmail, situation } = finding;
  const answer = ok({
    data: {
      first_name: person.first,
      last_name: person.last,
      email: workEmail,
      score: situation === 'found' ? 97 : 60,
      domain: person.organization.domain,
      accept_all: situation === 'catchall',
      verification: {
        date: new Date(Date.now() - DAY_MS).toISOString().slice(0, 10),
        status: STATUS[situation] ?? 'valid',
      },
      sources: [],
    },
  });
  return situation === 'slow' ? memory.inTurn(subject, [RUNNING, RUNNING], answer) : answer;
}

function problem(code: number, id: string, details: string): Answer {
  return { status: code, body: { errors: [{ id, code, details }] } };
}

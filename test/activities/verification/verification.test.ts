import test from 'ava';
import { classify } from '../../../activities/verification/domains.ts';
import { classifyEndpoint } from '../../../activities/verification/looks.ts';
import { parseAddress } from '../../../activities/verification/syntax.ts';
import { candidate, checkOf, DAY_MS, inWords, NOW } from '../../support/checks.ts';

async function verdictOf(email: string) {
  return inWords(await checkOf()(candidate(email)));
}

test('an address that passes everything is valid, with the time the vendor saw it', async (t) => {
  t.like(await checkOf()(candidate(' Rowan.Ashdown@CedarValleyClinic-Sim.com ')), {
    kind: 'decided',
    verdict: 'valid',
    reason: 'mailbox_ok',
    emailType: 'professional',
    validatedAt: new Date(NOW - DAY_MS),
    email: 'rowan.ashdown@cedarvalleyclinic-sim.com',
  });
});

for (const [text, email] of [
  ['jo@Bücher.de', 'jo@xn--bcher-kva.de'],
  ['jo@XN--BCHER-KVA.de', 'jo@xn--bcher-kva.de'],
  ['jo@клиника.рф', 'jo@xn--80apagcdp.xn--p1ai'],
  ['jo@clinic。com', 'jo@clinic.com'],
  ['jo@ｃｌｉｎｉｃ.com', 'jo@clinic.com'],
  ["mary-o'hara+npi@sub.clinic.co.uk", "mary-o'hara+npi@sub.clinic.co.uk"],
  [`${'a'.repeat(64)}@clinic.com`, `${'a'.repeat(64)}@clinic.com`],
] as const) {
  test(`${text.slice(0, 40)} is an address`, (t) => {
    t.is(parseAddress(text)?.email, email);
  });
}

for (const text of [
  '',
  'jo',
  '@clinic.com',
  'jo@',
  'jo@clinic',
  'jo@clinic.com.',
  'jo@.clinic.com',
  'jo@cli..nic.com',
  'jo@-clinic.com',
  'jo@clinic-.com',
  'jo@cli_nic.com',
  'jo@cli nic.com',
  'jo@cli%6eic.com',
  'jo@127.0.0.1',
  'jo@127.1',
  'jo@0x7f.1',
  'jo@[127.0.0.1]',
  'jo@[IPv6:::1]',
  'jo@clinic.com:25',
  'jo@cli\u200Dnic.com',
  '.jo@clinic.com',
  'jo.@clinic.com',
  'jo..an@clinic.com',
  'jo an@clinic.com',
  '"jo an"@clinic.com',
  'jo(comment)@clinic.com',
  'jo@an@clinic.com',
  'j***@clinic.com',
  'jo@c*****.com',
  'jö@clinic.com',
  'jo\u0000@clinic.com',
  'jo@clinic.com\r\nBcc: x@clinic.com',
  'Jo <jo@clinic.com>',
  `${'a'.repeat(65)}@clinic.com`,
  `jo@${'a'.repeat(64)}.com`,
  `jo@${'a.'.repeat(130)}com`,
  `${'a'.repeat(60)}@${'abc.'.repeat(48)}com`,
]) {
  test(`${JSON.stringify(text).slice(0, 60)} isn't an address (${text.length} characters)`, async (t) => {
    t.is(parseAddress(text), null);
    t.is(await verdictOf(text), 'invalid syntax');
  });
}

for (const domain of ['nope.invalidtld', 'clinic.example', 'clinic.test', 'co.uk', 'printer.local']) {
  test(`a domain under no suffix that ICANN delegates is refused: ${domain}`, async (t) => {
    t.is(await verdictOf(`jo@${domain}`), 'invalid no_suffix');
  });
}

for (const [email, verdict] of [
  ['jo@mailinator.com', 'invalid disposable'],
  ['jo@sub.mailinator.com', 'invalid disposable'],
  ['xk29d@privaterelay.appleid.com', 'risky relay'],
  ['jo@duck.com', 'risky relay'],
  ['jo@simplelogin.co', 'risky relay'],
  ['jo@aliases.simplelogin.com', 'risky relay'],
  ['jo@jo.addy.io', 'risky relay'],
  ['jo@passmail.net', 'risky relay'],
  ['info@clinic.com', 'risky shared'],
  ['Front.Desk@clinic.com', 'risky shared'],
  ['office2@clinic.com', 'risky shared'],
  ['billing+north@clinic.com', 'risky shared'],
  ['jo@29651.direct.athenahealth.com', 'invalid direct'],
  ['jo@nyumc.direct-ci.com', 'invalid direct'],
  ['jo@uprisedirect.com', 'invalid direct'],
  ['jo@direct.viacaremesh.com', 'invalid direct'],
  ['jo@practice.updox.com', 'invalid direct'],
  ['jo@direct.xn--bcher-kva.de', 'invalid direct'],
  ['jo@direct.bücher.de', 'invalid direct'],
  ['jo@direct.nextgen.com', 'invalid direct'],
  ['jo@direct.allscripts.com', 'invalid direct'],
  ['info@mailinator.com', 'invalid disposable'],
  ['info@direct.clinic.com', 'invalid direct'],
] as const) {
  test(`${email} is refused: ${verdict}`, async (t) => {
    t.is(await verdictOf(email), verdict);
  });
}

for (const email of [
  'h.r@clinic.com',
  'informatics.jo@clinic.com',
  'jo@athenahealth.com',
  'jo@nextgen.com',
  'jo@bücher.de',
  'jo@directcareclinic.com',
  'jo@mailinator-clinic.com',
]) {
  test(`${email} is not refused`, async (t) => {
    t.is(await verdictOf(email), 'valid mailbox_ok');
  });
}

for (const [domain, vendorType, type] of [
  ['gmail.com', null, 'personal'],
  ['gmail.com', 'professional', 'personal'],
  ['nyc.rr.com', null, 'personal'],
  ['physician.com', null, 'personal'],
  ['spectrum.net', null, 'personal'],
  ['alumni.stanford.edu', null, 'personal'],
  ['alum.mit.edu', 'professional', 'personal'],
  ['post.harvard.edu', null, 'personal'],
  ['harvard.edu', null, 'professional'],
  ['medscape.com', null, 'professional'],
  ['notgmail.com', null, 'professional'],
  ['clinic.com', 'personal', 'personal'],
  ['clinic.com', 'professional', 'professional'],
] as const) {
  test(`${domain}, which the vendor calls ${vendorType}, is ${type}`, (t) => {
    t.is(classify(domain, vendorType), type);
  });
}

for (const [kind, endpoint, what] of [
  ['DIRECT', 'jo@clinic.com', 'direct'],
  ['DIRECT', ' Jo@Direct.Clinic.com ', 'direct'],
  ['DIRECT', 'jo@gmail.com', 'email'],
  ['DIRECT', 'mailto:jo@nyc.rr.com', 'email'],
  ['CONNECT', 'jo@clinic.com', 'email'],
  ['CONNECT', 'jo@29651.direct.athenahealth.com', 'direct'],
  ['OTHERS', 'jo@practice.updox.com', 'direct'],
  ['OTHERS', 'https://www.clinic.com/contact', 'url'],
  ['FHIR', 'fhir.clinic.com/r4', 'url'],
  ['SOAP', 'HTTP://Clinic.com:8080/soap', 'url'],
  ['DIRECT', 'https://direct.clinic.com', 'url'],
  ['DIRECT', 'jo@clinic.invalidtld', 'junk'],
  ['OTHERS', 'ftp://clinic.com', 'junk'],
  ['OTHERS', 'https://jo:secret@clinic.com', 'junk'],
  ['DIRECT', 'jo@clinic', 'junk'],
  ['DIRECT', 'N/A', 'junk'],
  ['OTHERS', '(555) 010-0100', 'junk'],
  ['OTHERS', '', 'junk'],
] as const) {
  test(`an NPPES endpoint ${JSON.stringify(endpoint)} typed ${kind} is ${what}`, (t) => {
    t.is(classifyEndpoint(kind, endpoint), what);
  });
}

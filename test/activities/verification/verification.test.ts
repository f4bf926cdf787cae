import { domainToASCII } from 'node:url';
import test from 'ava';
import { classify } from '../../../activities/verification/email-type.ts';
import { isLookalike } from '../../../activities/verification/lookalikes.ts';
import { classifyEndpoint } from '../../../activities/verification/looks.ts';
import { parseAddress } from '../../../activities/verification/syntax.ts';
import { candidate, checkOf, DAY_MS, inWords, NOW } from '../../support/checks.ts';

const HARTLEY = {
  first: 'Jo',
  middle: null,
  last: 'Hartley',
  generation: null,
  otherNames: [],
  profileNames: [],
  profileSurnames: [],
  practice: { line1: null, city: null, state: null, zip: null },
  otherStates: [],
};

async function verdictOf(email: string) {
  return inWords(await checkOf()(candidate(email)));
}

test("an address that passes all checks is valid, with the date of its vendor's claim", async (t) => {
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
  ['jo@clinic.com.', 'jo@clinic.com'],
  ['jo@clinic.com。', 'jo@clinic.com'],
  ['jo@ｃｌｉｎｉｃ.com', 'jo@clinic.com'],
  ["mary-o'hara+npi@sub.clinic.co.uk", "mary-o'hara+npi@sub.clinic.co.uk"],
  ['mailto:Jo@clinic.com', 'jo@clinic.com'],
  ['mailto: jo@clinic.com?subject=Appointment', 'jo@clinic.com'],
  ['Jo Hart <jo@clinic.com>', 'jo@clinic.com'],
  ['<jo@clinic.com>', 'jo@clinic.com'],
  ['jo@clinic.com,', 'jo@clinic.com'],
  ['jo@clinic.com;', 'jo@clinic.com'],
  ['jo@clinic.com)', 'jo@clinic.com'],
  ['\u200Bjo@clinic.com\u200B', 'jo@clinic.com'],
  ["'jo@clinic.com'", 'jo@clinic.com'],
  ['jo@clinic.com..', 'jo@clinic.com'],
  ['r&d-jo@clinic.com', 'r&d-jo@clinic.com'],
  ['emilia@clinic.com', 'emilia@clinic.com'],
  ['jsmith5551234567@clinic.com', 'jsmith5551234567@clinic.com'],
  ['12345678@clinic.com', '12345678@clinic.com'],
  [`${'a'.repeat(64)}@clinic.com`, `${'a'.repeat(64)}@clinic.com`],
] as const) {
  test(`${text.slice(0, 40)} is a well-formed email address`, (t) => {
    t.is(parseAddress(text)?.email, email);
  });
}

for (const text of [
  '',
  'jo',
  '@clinic.com',
  'jo@',
  'jo@clinic',
  'jo@clinic.',
  'jo@.',
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
  '{first}.{last}@clinic.com',
  '%20kusher@clinic.com',
  '20kusher@clinic.com',
  'u003ekusher@clinic.com',
  'x22kusher@clinic.com',
  'emailkusher@clinic.com',
  'mailtokusher@clinic.com',
  '303-555-0142kusher@clinic.com',
  '3035550142.kusher@clinic.com',
  '555-0142kusher@clinic.com',
  'jo=hart@clinic.com',
  'jo/hart@clinic.com',
  `${'a'.repeat(65)}@clinic.com`,
  `jo@${'a'.repeat(64)}.com`,
  `jo@${'a.'.repeat(130)}com`,
  `${'a'.repeat(60)}@${'abc.'.repeat(48)}com`,
]) {
  test(`${JSON.stringify(text).slice(0, 60)} (${text.length} characters) is not a well-formed email address`, async (t) => {
    t.is(parseAddress(text), null);
    t.is(await verdictOf(text), 'invalid syntax');
  });
}

for (const domain of [
  'nope.invalidtld',
  'clinic.example',
  'clinic.test',
  'co.uk',
  'printer.local',
]) {
  test(`an address at ${domain} is rejected, because ICANN does not list its suffix`, async (t) => {
    t.is(await verdictOf(`jo@${domain}`), 'invalid no_suffix');
  });
}

for (const [email, verdict] of [
  ['jo@mailinator.com', 'invalid disposable'],
  ['jo@sub.mailinator.com', 'invalid disposable'],
  ['xk29d@privaterelay.appleid.com', 'risky relay'],
  ['jo@duck.com', 'risky relay'],
  ['4f1c2a@reply.craigslist.org', 'risky relay'],
  ['k2l9xvn1q8@marketplace.amazon.com', 'risky relay'],
  ['jo@marketplace.com', 'valid mailbox_ok'],
  ['jo@simplelogin.co', 'risky relay'],
  ['jo@aliases.simplelogin.com', 'risky relay'],
  ['jo@jo.addy.io', 'risky relay'],
  ['jo@passmail.net', 'risky relay'],
  ['jo@simplelogin.io', 'risky relay'],
  ['jo@x.mycloaked.id', 'risky relay'],
  ['info@clinic.com', 'risky shared'],
  ['Front.Desk@clinic.com', 'risky shared'],
  ['office2@clinic.com', 'risky shared'],
  ['billing+north@clinic.com', 'risky shared'],
  ['jo@29651.direct.athenahealth.com', 'invalid direct'],
  ['jo@nyumc.direct-ci.com', 'invalid direct'],
  ['jo@uprisedirect.com', 'invalid direct'],
  ['jo@mchd.cernerdirect.com', 'invalid direct'],
  ['jo@resmed.kareodirect.com', 'invalid direct'],
  ['jo@clinic.unheardofdirect.net', 'invalid direct'],
  ['jo@clinic.direct-unheardof.net', 'invalid direct'],
  ['jo@direct.spokaneeye.nextgenshare.com', 'invalid direct'],
  ['jo@securedirect.clinic.com', 'invalid direct'],
  ['jo@directmail.clinic.com', 'invalid direct'],
  ['jo@hisp.clinic.com', 'invalid direct'],
  ['jo@direct.viacaremesh.com', 'invalid direct'],
  ['jo@practice.updox.com', 'invalid direct'],
  ['jo@direct.xn--bcher-kva.de', 'invalid direct'],
  ['jo@direct.bücher.de', 'invalid direct'],
  ['jo@direct.nextgen.com', 'invalid direct'],
  ['jo@direct.allscripts.com', 'invalid direct'],
  ['info@mailinator.com', 'invalid disposable'],
  ['info@gmial.com', 'invalid lookalike'],
  ['info@direct.clinic.com', 'invalid direct'],
] as const) {
  test(`the address ${email} is rejected with the verdict "${verdict}"`, async (t) => {
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
  'jo@mydpcdirect.com',
  'jo@carolinafamilydirect.com',
  'jo@direct-care.com',
  'jo@clinic.direct',
  'jo@directory.clinic.com',
  'sample@clinic.com',
  'tester@clinic.com',
  'p.noone@clinic.com',
  'aabb@clinic.com',
  '1112223333@clinic.com',
  'jo@mailinator-clinic.com',
]) {
  test(`the address ${email} looks unusual, but is not rejected`, async (t) => {
    t.is(await verdictOf(email), 'valid mailbox_ok');
  });
}

const FREE_MAIL_SLIPS = `
  gmial.com gmai.com gmal.com gamil.com gnail.com gmaill.com gmaul.com gmall.com gmeil.com ggmail.com
  g-mail.com gmail.co gmail.cm gmail.om gmail.net gmail.org gmail.co.uk gmail.com.br gmai1.com grnail.com
  gmàil.com yaho.com yahooo.com yhaoo.com yahho.com tahoo.com yah00.com yahoo.cm yahoo.net hotmial.com
  hotmal.com hotmai.com hotmali.com hotnail.com jotmail.com hotmail.co outlok.com outloook.com outlool.com
  outlook.cm iclod.com icoud.com icloud.co iclould.com aol.co aol.om aoll.com msn.cm live.co comcst.net
  comcasr.net comacst.net comcast.ne verizn.net verison.net att.ne bellsoth.net bellsouht.net sbcgloble.net
  sbcgobal.net earthlnk.net optonlin.net protonmial.com googlmail.com rocketmial.com mail.gmial.com`;

for (const domain of FREE_MAIL_SLIPS.trim().split(/\s+/)) {
  test(`an address at ${domain} is rejected as a misspelled free-mail domain`, async (t) => {
    t.is(await verdictOf(`jo.hartley@${domain}`), 'invalid lookalike');
  });
}

for (const domain of [
  'gmail.con',
  'yahoo.cmo',
  'hotmail.comm',
  'aol.ocm',
  'comcast.nte',
  'clinic.con',
]) {
  test(`an address at ${domain} is rejected, because its top-level domain does not exist`, async (t) => {
    t.is(await verdictOf(`jo.hartley@${domain}`), 'invalid no_suffix');
  });
}

for (const domain of [
  'gmаil.com', // With a Cyrillic a.
  'уаһоо.com', // All Cyrillic.
  'аoӏ.com',
  'clіnic.com', // With a Ukrainian i.
  'clinic.сardiology.com',
  'cοmcast.net', // With a Greek o.
  'clinicж.com',
  'ցmail.com', // With an Armenian letter.
  'gmaıl.com', // All Latin, with a dotless i.
]) {
  test(`${domain} counts as a lookalike domain, and so does ${domainToASCII(domain)}`, async (t) => {
    t.is(await verdictOf(`jo@${domain}`), 'invalid lookalike');
    t.is(await verdictOf(`jo@${domainToASCII(domain)}`), 'invalid lookalike');
  });
}

for (const domain of `
  gmail.com googlemail.com ymail.com mail.com email.com gmx.com gmx.net hotmail.co.uk yahoo.ca yahoo.com.au
  outlook.de live.com live.ca cloud.com rocketmail.com protonmail.com proton.me earthling.net me.com grail.com
  wahoo.com outlookmd.com hotelmail.org comcast.com verizon.com charter.com charter.org att.com cox.com
  box.net fox.net mayo.edu mailhub.org attorney.com клиника.com κλινική.com müller-praxis.de 東京clinic.com
  קליניקה.com clinic.рф xn--mller-praxis-dlb.de`
  .trim()
  .split(/\s+/)) {
  test(`an address at ${domain} is not rejected as a lookalike`, async (t) => {
    t.is(await verdictOf(`jo.hartley@${domain}`), 'valid mailbox_ok');
  });
}

for (const email of `jo.hartley@example.com jo@mail.example.org first.last@domain.com jhartley@yourcompany.com
  name@email.com your.name@clinic.com firstname.lastname@clinic.com flast@clinic.com noemail@clinic.com
  no-email@gmail.com no.email123@clinic.com noemailprovided@clinic.com none@none.com not.available@clinic.com
  x@x.com abc@abc.com unknown@clinic.com test@clinic.com test_2@clinic.com testuser@gmail.com xxx@clinic.com aaaa@clinic.com
  null@clinic.com user+npi@clinic.com asdf@clinic.com placeholder@clinic.com`.split(
  /\s+/,
)) {
  test(`${email} is rejected as a placeholder`, async (t) => {
    t.is(await verdictOf(email), 'invalid placeholder');
  });
}

test('an NPPES address of type DIRECT is rejected, unless it is at a free-mail domain', async (t) => {
  const named = async (email: string, isTypedDirect: boolean) =>
    inWords(await checkOf()(candidate(email, { isTypedDirect })));
  t.is(await named('jo@clinic.com', true), 'invalid direct');
  t.is(await named('jo@clinic.com', false), 'valid mailbox_ok');
  t.is(await named('jo.hartley@gmail.com', true), 'valid mailbox_ok');
});

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
  ['clinic.com', 'personal', 'professional'],
  ['kp.org', 'personal', 'professional'],
  ['hartley-family.net', 'personal', 'personal'],
  ['hartley-family.net', null, 'personal'],
  ['thehartleys.net', null, 'personal'],
  ['hartley.net', 'personal', 'personal'],
  ['hartley.net', null, 'professional'],
  ['hartleydental.com', 'personal', 'professional'],
  ['hartley.clinic', 'personal', 'professional'],
  ['hartley.family', null, 'personal'],
  ['clinic.com', 'professional', 'professional'],
  ['va.gov', 'personal', 'professional'],
  ['mail.mil', 'personal', 'professional'],
  ['med.umich.edu', 'personal', 'professional'],
  ['alumni.umich.edu', 'professional', 'personal'],
  ['stanfordalumni.org', 'professional', 'personal'],
  ['gov.clinic.com', 'personal', 'professional'],
] as const) {
  test(`an address at ${domain} with vendor type ${vendorType} is classified as ${type}`, (t) => {
    t.is(classify(domain, vendorType, { person: HARTLEY, organization: null }), type);
  });
}

for (const [domain, employer, type] of [
  ['hartleyclinic.com', 'hartleyclinic.com', 'professional'],
  ['mail.hartleyclinic.com', 'hartleyclinic.com', 'professional'],
  ['hartleyclinic.com', 'cardiology.hartleyclinic.com', 'professional'],
  ['hartley.net', 'hartleydental.com', 'personal'],
  ['gmail.com', 'gmail.com', 'personal'],
] as const) {
  test(`if the employer's domain is ${employer}, an address at ${domain} is ${type}`, (t) => {
    const organization = { name: null, domain: employer, source: 'nppes', confidence: 1 };
    t.is(classify(domain, 'personal', { person: HARTLEY, organization }), type);
  });
}

for (const [domain, employer, isRefused] of [
  ['stbrendan.com', 'stbrendan.org', true],
  ['stbrenden.org', 'stbrendan.org', true],
  ['st-brendan.org', 'stbrendan.org', true],
  ['centra1health.org', 'centralhealth.org', true],
  ['mail.stbrendan.org', 'stbrendan.org', false],
  ['stbarnabas.org', 'stbrendan.org', false],
  ['uhs.com', 'uhs.org', false],
  ['va.org', 'va.gov', true],
  ['med.va.gov', 'va.gov', false],
  ['gmail.com', 'stbrendan.org', false],
] as const) {
  test(`at the employer's domain ${employer}, ${domain} ${isRefused ? 'is' : 'is not'} a lookalike`, (t) => {
    t.is(isLookalike(domain, employer), isRefused);
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
  ['OTHERS', 'jo@gmial.com', 'junk'],
  ['OTHERS', 'jo@domain.com', 'junk'],
  ['OTHERS', 'jo@mailinator.com', 'junk'],
  ['OTHERS', 'frontdesk@clinic.com', 'email'],
  ['OTHERS', 'ftp://clinic.com', 'junk'],
  ['OTHERS', 'https://jo:secret@clinic.com', 'junk'],
  ['DIRECT', 'jo@clinic', 'junk'],
  ['DIRECT', 'N/A', 'junk'],
  ['OTHERS', '(555) 010-0100', 'junk'],
  ['OTHERS', '', 'junk'],
] as const) {
  test(`the NPPES endpoint ${JSON.stringify(endpoint)} of type ${kind} is classified as ${what}`, (t) => {
    t.is(classifyEndpoint(kind, endpoint), what);
  });
}

// For each given name, up to the comma: its full form, what people who bear it are called, how else it is spelled.
// Some short names stand with several: Chris is Christopher's and Christine's, who are not each other.
const NAMES = `abigail abby gail, abraham abe bram, agnes aggie nessa, albert al bert, alexander alex alec al sandy
  xander sasha, alexandra alex lexi sandra sandy sasha, alfred al fred alf, alice allie, allison alison
  ali allie, amanda mandy, amelia amy millie, andrea andi drea, andrew andy drew, angela angie, anne ann
  anna annie anita, anthony tony anton antonio, antonia toni, arthur art artie, barbara barb babs barbie,
  beatrice bea trixie, benjamin ben benji, bernard bernie, beverly bev, bradley brad, calvin cal, cameron
  cam, carolyn caroline carol carrie lynn, cassandra cassie sandra, catherine katherine kathryn katharine
  cathryn cathy kathy kate katie kat kathleen cate kitty, cecilia celia cece, charles charlie chuck chas,
  charlotte charlie lottie char, chelsea chels, christina christine kristina kristine cristina chris
  chrissy christy tina kris kristy, christopher chris kit topher kristopher, clifford cliff, constance
  connie, curtis curt, cynthia cindy, daniel dan danny, danielle dani, david dave davey, deborah debra deb
  debbie, dennis denny, diana diane dianne di, dominic dom nick, donald don donnie, dorothy dot dottie
  dolly, douglas doug, edmund ed eddie ned, edward ed eddie ned ted teddy, edwin ed eddie, eleanor elinor
  ellie nell nora, elizabeth elisabeth liz lizzie beth betsy betty eliza libby lisa elise liza, emily em
  emmy, eric erik erick, eugene gene, evelyn evie, ezekiel zeke, florence flo, frances fran francie,
  francis frank fran, francisco frank paco pancho, franklin frank, frederick frederic fred freddy rick,
  gabriel gabe, gabriella gabby, geoffrey jeffrey jeff geoff, gerald gerry jerry, geraldine gerry, gerard
  gerry jerry, gilbert gil bert, gregory greg, guillermo memo, gwendolyn gwen wendy, harold hal harry,
  harry hank, helen ellen nell, henry hank harry hal, herbert herb bert, howard howie, irene rene, isaac
  ike, isabella isabel isabelle bella izzy, jacob jake, jacqueline jackie, james jim jimmy jamie, janet
  jan, jane janie jan, jason jay, jean jeannie jeanne, jennifer jen jenny jenn, jeremiah jerry, jeremy
  jerry, jerome jerry, jessica jess jessie, joan joanie, joanna joanne jo, john johnny jack jon, jonathan
  jon jonny johnathan nathan, jose pepe, joseph joe joey, josephine jo josie, joshua josh, joyce joy,
  judith judy judi, julia julie jules, juliana julie, justin jus, karen kari, kelly kel, kenneth ken
  kenny, kevin kev, kimberly kim kimmy, kristen kristin kris, larry lawrence, laura laurie lori, lauren
  laurie, lawrence laurence larry, leonard len lenny leo, leonardo leo, leslie les, lillian lily lil,
  linda lindy, louis lou louie lewis, louise lou, lucille lucy, lucy lucia, luis lou, madeline maddie
  madeleine, manuel manny, marcus marc mark, margaret maggie meg megan peggy marge margie greta rita
  daisy, maria mia marie, marilyn lynn, marjorie marge margie, martha marty, martin marty, mary marie
  maria molly polly mae, matthew matt, maureen mo, maurice morris, maxwell max, megan meg, melanie mel,
  melissa missy mel lissa, melvin mel, michael mike mick mickey mikey micheal, michelle shelly michele,
  miguel mike, mildred millie, mitchell mitch, mohammad mohammed muhammad mohamed mohamad mo, morgan mo,
  nancy nan, natalie nat, nathan nate, nathaniel nathan nate nat, nicholas nicolas nick nicky, nicole
  nikki nicky, norman norm, olivia liv livvy, oliver ollie, pamela pam, patricia pat patty trish tricia
  patti, patrick pat paddy, paula polly, peter pete, philip phillip phil, priscilla cilla, prudence prue,
  rachel rachael rae, ralph ralphie, randall randy, randolph randy, raphael rafael rafe rafi, raymond ray,
  rebecca becky becca rebekah, reginald reggie reg, richard rick rich dick richie ricky, robert bob bobby
  rob robbie bert, roberta bobbie robbie, roberto bob beto, roderick rod rick, rodney rod, roger rog,
  ronald ron ronnie, rosemary rose rosie, roxanne roxie, russell russ rusty, salvatore sal, samantha sam
  sammie, samuel sam sammy, sandra sandy, sarah sara sally, scott scotty, sean shawn shaun, sebastian seb
  bastian, sharon shari sherry, shirley shirl, sidney sydney sid, solomon sol, stanley stan, stephanie
  steph stefanie, stephen steven steve stevie stephan, stuart stewart stu, susan sue susie suzie susanna
  suzanne, sylvester sly, tamara tammy tami, terence terrence terry, teresa theresa terry tess tessa,
  theodore ted teddy theo, thomas tom tommy, timothy tim timmy, tobias toby, tracy tracey, valerie val,
  vanessa nessa, veronica ronnie, victor vic, victoria vicky vicki tori, vincent vince vinny, viola vi,
  virginia ginny ginger, vivian viv, walter walt wally, wendell wen, wesley wes, wilfred will fred,
  william bill billy will willie liam, winifred winnie, yvonne vonnie, zachary zach zack zachariah`;

const BEARERS: ReadonlyMap<string, readonly number[]> = indexOf(NAMES);

function indexOf(names: string): Map<string, number[]> {
  const index = new Map<string, number[]>();
  for (const [bearer, forms] of names.split(/,\s*/).entries()) {
    for (const form of forms.split(/\s+/)) index.set(form, [...(index.get(form) ?? []), bearer]);
  }
  return index;
}

/**
 * Whether two given names are the same one, or forms of the same one: `bob` and `robert`, `rob` and `bob`.
 * @param one folded, as `other` is
 */
export function sameGivenName(one: string, other: string): boolean {
  if (one === other) return one !== '';
  const bearers = BEARERS.get(other) ?? [];
  return BEARERS.get(one)?.some((bearer) => bearers.includes(bearer)) ?? false;
}

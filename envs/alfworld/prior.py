"""Where things are kept: the rule by which games are made, and by which one who knows households searches.

Each portable class has one to three homes among the receptacle classes that ALFWorld lets it stand in, in order of
preference with weights 8, 4, 2; every other compatible class has weight 1/2. Classes that a scene lacks drop out. So
an apple is usually in the fridge and seldom in the microwave, which a policy can learn, and never where the real
game's `canContain` table forbids it. Receptacles of one class are equally likely.
"""

import functools

from envs.alfworld import package

HOME_WEIGHTS = (8.0, 4.0, 2.0)
OTHER_WEIGHT = 0.5
LAMP_PLACES = ("Desk", "SideTable", "Dresser", "Shelf", "DiningTable", "CoffeeTable")  # where a DeskLamp stands

HOMES = {
    "AlarmClock": ("SideTable", "Desk", "Dresser"),
    "Apple": ("Fridge", "CounterTop", "DiningTable"),
    "BaseballBat": ("Bed", "SideTable"),
    "BasketBall": ("Bed", "Desk", "ArmChair"),
    "Book": ("Bed", "Desk", "Shelf"),
    "Bowl": ("CounterTop", "Cabinet", "DiningTable"),
    "Box": ("Sofa", "CoffeeTable", "DiningTable"),
    "Bread": ("CounterTop", "DiningTable", "Fridge"),
    "ButterKnife": ("CounterTop", "Drawer", "DiningTable"),
    "CD": ("Desk", "Drawer", "Shelf"),
    "Candle": ("Toilet", "CounterTop", "Shelf"),
    "CellPhone": ("Bed", "Desk", "Sofa"),
    "Cloth": ("BathtubBasin", "Cabinet", "CounterTop"),
    "CreditCard": ("Desk", "Sofa", "CoffeeTable"),
    "Cup": ("SinkBasin", "Cabinet", "CounterTop"),
    "DishSponge": ("SinkBasin", "CounterTop", "Drawer"),
    "Egg": ("Fridge", "CounterTop", "SinkBasin"),
    "Fork": ("Drawer", "CounterTop", "SinkBasin"),
    "Glassbottle": ("CounterTop", "Shelf", "Fridge"),
    "HandTowel": ("HandTowelHolder", "CounterTop"),
    "Kettle": ("StoveBurner", "CounterTop", "Cabinet"),
    "KeyChain": ("SideTable", "Drawer", "Safe"),
    "Knife": ("CounterTop", "Drawer", "DiningTable"),
    "Ladle": ("Drawer", "CounterTop", "Cabinet"),
    "Laptop": ("Desk", "Bed", "Sofa"),
    "Lettuce": ("Fridge", "CounterTop", "DiningTable"),
    "Mug": ("CoffeeMachine", "CounterTop", "Desk"),
    "Newspaper": ("CoffeeTable", "Sofa", "SideTable"),
    "Pan": ("StoveBurner", "CounterTop", "Cabinet"),
    "PaperTowel": ("CounterTop", "Shelf"),
    "Pen": ("Desk", "Drawer", "Shelf"),
    "Pencil": ("Desk", "Shelf", "Drawer"),
    "PepperShaker": ("CounterTop", "Shelf", "Cabinet"),
    "Pillow": ("Bed", "Sofa", "ArmChair"),
    "Plate": ("Cabinet", "CounterTop", "DiningTable"),
    "Plunger": ("Cart", "Cabinet"),
    "Pot": ("StoveBurner", "Cabinet", "CounterTop"),
    "Potato": ("SinkBasin", "CounterTop", "Fridge"),
    "RemoteControl": ("Sofa", "CoffeeTable", "ArmChair"),
    "SaltShaker": ("CounterTop", "DiningTable", "Cabinet"),
    "SoapBar": ("SinkBasin", "Toilet", "CounterTop"),
    "SoapBottle": ("CounterTop", "Toilet", "Cabinet"),
    "Spatula": ("Drawer", "CounterTop", "SinkBasin"),
    "Spoon": ("Drawer", "CounterTop", "SinkBasin"),
    "SprayBottle": ("Toilet", "Cabinet", "CounterTop"),
    "Statue": ("Shelf", "Dresser", "CoffeeTable"),
    "TennisRacket": ("Bed", "Dresser", "Desk"),
    "TissueBox": ("SideTable", "Toilet", "Shelf"),
    "ToiletPaper": ("ToiletPaperHanger", "Toilet", "Cabinet"),
    "ToiletPaperRoll": ("Toilet", "Cabinet", "Drawer"),
    "Tomato": ("CounterTop", "Fridge", "SinkBasin"),
    "Towel": ("TowelHolder",),
    "Vase": ("Shelf", "SideTable", "CoffeeTable"),
    "Watch": ("SideTable", "Dresser", "Shelf"),
    "WateringCan": ("SideTable", "Shelf", "Dresser"),
    "WineBottle": ("Fridge", "CounterTop", "Cabinet"),
}


@functools.cache
def compatible(portable: str) -> frozenset[str]:
    """The receptacle classes that can hold a portable class; movable receptacles (bowls, pans, ..) hold nothing here."""
    constants = package.constants()
    places = {
        place
        for place, held in constants.VAL_RECEPTACLE_OBJECTS.items()
        if portable in held and place not in constants.MOVABLE_RECEPTACLES_SET
    }
    return frozenset(places)


def weight(portable: str, place: str) -> float:
    """How likely a receptacle class is to hold a portable class, unnormalised; 0 where it cannot."""
    if portable == "DeskLamp":
        return 1.0 if place in LAMP_PLACES else 0.0
    if place not in compatible(portable):
        return 0.0
    homes = HOMES[portable]
    return HOME_WEIGHTS[homes.index(place)] if place in homes else OTHER_WEIGHT
